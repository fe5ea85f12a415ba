"""The sink of `jetstream`."""
