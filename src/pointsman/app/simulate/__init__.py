"""A fleet in virtual time: the live policies and ledger over modelled engines."""
