"""Joining: how an engine of ours tells front ends of itself, and takes its leave."""
