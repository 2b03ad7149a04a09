"""How engines pass the KV of a prompt on: what the requests of both legs say, kind by kind. Bytes in, bytes out."""
