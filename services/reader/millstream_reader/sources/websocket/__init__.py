"""The `websocket` source."""
