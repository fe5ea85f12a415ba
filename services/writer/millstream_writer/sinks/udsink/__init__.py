"""The `udsink`: a sink written by the user."""
