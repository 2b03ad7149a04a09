"""The policy `cost`: what a request costs at each worker and by each plan, in milliseconds of the time model."""
