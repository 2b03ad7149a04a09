"""Pure rooms: no clock, socket, file, environment or global random. They come in as parameters."""
