"""Who of several processes may do what only one may do."""
