"""The source of `file`."""
