"""From a request's body to the token ids that its engine will compute with."""
