"""The sink of `log`."""
