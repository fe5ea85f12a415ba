"""The `kafka` source."""
