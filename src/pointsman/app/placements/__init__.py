"""Placements of many gangs: one after the other, drawn, and simulated over time."""
