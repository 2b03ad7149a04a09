"""The nouns that everything else is made of."""
