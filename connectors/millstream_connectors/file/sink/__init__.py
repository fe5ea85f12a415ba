"""The sink of `file`."""
