"""The sink of `opensearch`."""
