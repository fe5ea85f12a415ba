"""The source of events that a server sends over HTTP."""
