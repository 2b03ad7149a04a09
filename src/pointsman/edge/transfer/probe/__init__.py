"""How fast KV can go between two machines, measured the way transfers take."""
