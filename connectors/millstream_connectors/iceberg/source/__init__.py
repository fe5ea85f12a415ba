"""The source of `iceberg`."""
