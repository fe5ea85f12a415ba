"""The source of `http`."""
