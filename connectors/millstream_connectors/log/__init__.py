"""The sink that prints."""
