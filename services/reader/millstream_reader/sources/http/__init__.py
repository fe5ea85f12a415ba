"""The `http` source."""
