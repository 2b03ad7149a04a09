"""A cluster in virtual time: gangs come and end, nodes fail and return, a scheduler decides who gets what."""
