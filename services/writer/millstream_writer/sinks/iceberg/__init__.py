"""The `iceberg` sink."""
