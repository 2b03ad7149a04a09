"""Two engines for one request: a prompt that one computes for another one, and beginnings that are fetched."""
