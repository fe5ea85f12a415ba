"""The `opensearch` sink."""
