"""The `http` sink."""
