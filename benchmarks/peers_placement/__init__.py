"""How others place gangs, written from their documentation for comparison: with the interface of our own scheduler."""
