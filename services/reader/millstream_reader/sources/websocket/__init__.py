"""Messages of a WebSocket."""
