"""The `file` source."""
