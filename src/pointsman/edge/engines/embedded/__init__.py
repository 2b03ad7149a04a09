"""The embedded engine: a real decoder in numpy, small enough to run many of on a laptop."""
