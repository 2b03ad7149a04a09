"""Virtual time and memory networks: whole fleets in one thread, minutes of theirs in milliseconds of ours."""
