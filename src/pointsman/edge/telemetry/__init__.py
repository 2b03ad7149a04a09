"""Metric names, logs."""
