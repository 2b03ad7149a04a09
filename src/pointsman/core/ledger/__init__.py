"""The only owner of state: events in, views and counters out."""
