"""The source of `sse`."""
