"""Decisions as they are kept, asked and explained."""
