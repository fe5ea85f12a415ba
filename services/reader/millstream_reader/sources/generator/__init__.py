"""The `generator` source."""
