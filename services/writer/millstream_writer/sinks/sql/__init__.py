"""The `sql` sink."""
