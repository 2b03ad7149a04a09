"""Gangs on a cluster: all or nothing, and close together."""
