"""The sink of `user_defined`."""
