"""KV blocks on the move between engines, whatever engines they are."""
