"""The `postgres` sink."""
