"""Many gangs: queues with quotas and fair shares, and the cycle that places, moves and evicts whole gangs."""
