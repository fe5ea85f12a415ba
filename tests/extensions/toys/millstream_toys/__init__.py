"""Connectors of another package."""
