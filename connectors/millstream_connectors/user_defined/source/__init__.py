"""The source of `user_defined`."""
