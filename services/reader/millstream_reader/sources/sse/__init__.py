"""The `sse` source: events that a server sends over HTTP."""
