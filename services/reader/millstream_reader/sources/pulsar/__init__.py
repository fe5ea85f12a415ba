"""The `pulsar` source."""
