"""The `pulsar` sink."""
