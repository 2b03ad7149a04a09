"""Simulations compared: seeds, confidence, sweeps, reports."""
