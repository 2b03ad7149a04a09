"""Made workloads: each a function of its settings and a random number generator."""
