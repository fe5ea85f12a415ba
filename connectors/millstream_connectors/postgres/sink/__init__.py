"""The sink of `postgres`."""
