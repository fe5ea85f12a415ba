"""The source of `jetstream`."""
