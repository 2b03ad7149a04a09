"""vLLM's HTTP contract over any engine of ours: what the simulated and the embedded engine have in common."""
