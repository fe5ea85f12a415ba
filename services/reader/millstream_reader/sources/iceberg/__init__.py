"""The `iceberg` source."""
