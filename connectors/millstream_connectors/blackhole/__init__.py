"""The sink that drops everything."""
