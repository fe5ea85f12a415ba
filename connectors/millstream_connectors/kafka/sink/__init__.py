"""The sink of `kafka`."""
