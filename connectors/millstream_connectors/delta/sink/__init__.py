"""The sink of `delta`."""
