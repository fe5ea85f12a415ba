"""The source of `delta`."""
