"""Step times of an engine from what it was seen to do."""
