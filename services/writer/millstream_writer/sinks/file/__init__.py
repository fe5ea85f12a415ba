"""The `file` sink."""
