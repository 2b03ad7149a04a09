"""What to do with a workload and so many GPUs, in plain words."""
