"""Workloads: what is asked of a fleet, and when; pure. Reading files of them is the edge's work."""
