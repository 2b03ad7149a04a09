"""The HTML report of an experiment: one file, no scripts, nothing loaded from elsewhere."""
