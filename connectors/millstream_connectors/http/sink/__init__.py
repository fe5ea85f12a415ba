"""The sink of `http`."""
