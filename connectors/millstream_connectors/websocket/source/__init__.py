"""The source of `websocket`."""
