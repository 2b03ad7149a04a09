"""A new policy for a part of the traffic: who is in that part, what came of it, whether it is worse. Pure."""
