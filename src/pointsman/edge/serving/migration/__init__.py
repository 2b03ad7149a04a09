"""Migration: a stream goes on at another engine from what its client has already, without a token twice or missing."""
