"""The `sql` source."""
