"""The sink of `pulsar`."""
