"""The source of `postgres`."""
