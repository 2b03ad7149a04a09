"""`pointsman node`: what runs beside engines on each machine, and who asks it."""
