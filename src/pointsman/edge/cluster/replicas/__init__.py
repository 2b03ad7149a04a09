"""Front ends that share a fleet: what they tell each other."""
