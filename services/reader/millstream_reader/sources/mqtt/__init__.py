"""The `mqtt` source."""
