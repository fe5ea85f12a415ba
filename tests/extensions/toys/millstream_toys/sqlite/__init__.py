"""The `sqlite` sink."""
