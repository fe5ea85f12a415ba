"""The source of `pulsar`."""
