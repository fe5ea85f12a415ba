"""The source of messages of a WebSocket."""
