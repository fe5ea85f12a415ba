"""The `countdown` source."""
