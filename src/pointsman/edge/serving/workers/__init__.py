"""Engines of a front end: the places where they are found, and what the admin port does with them."""
