"""The source that asks an HTTP server at intervals."""
