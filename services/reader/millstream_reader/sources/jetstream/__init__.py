"""The `jetstream` source."""
