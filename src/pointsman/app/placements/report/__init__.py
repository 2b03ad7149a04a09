"""The HTML report of a simulated cluster: one file, no scripts, nothing loaded from elsewhere."""
