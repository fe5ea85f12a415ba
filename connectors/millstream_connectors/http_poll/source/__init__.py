"""The source of `http_poll`."""
