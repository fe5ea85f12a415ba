"""The `mqtt` sink."""
