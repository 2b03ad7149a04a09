"""Discovery: where engines are found, each place a file of its own."""
