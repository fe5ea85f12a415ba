"""The `delta` sink."""
