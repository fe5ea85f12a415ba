"""The `kafka` sink."""
