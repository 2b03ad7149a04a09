"""Predicted times."""
