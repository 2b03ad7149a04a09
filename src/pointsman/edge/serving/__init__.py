"""The front end: entry, dispatch, relay, admin routes."""
