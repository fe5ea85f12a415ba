"""The sink of `iceberg`."""
