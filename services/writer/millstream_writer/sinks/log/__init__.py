"""The `log` sink."""
