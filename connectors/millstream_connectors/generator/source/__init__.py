"""The source of `generator`."""
