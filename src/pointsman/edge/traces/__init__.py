"""Files of traces, of benchmark results and of profiles: read and written, line by line."""
