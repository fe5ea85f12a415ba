"""The `delta` source."""
