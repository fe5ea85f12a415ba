"""The `jetstream` sink."""
