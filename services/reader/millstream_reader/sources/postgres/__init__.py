"""The `postgres` source."""
