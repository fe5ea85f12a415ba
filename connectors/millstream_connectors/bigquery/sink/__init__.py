"""The sink of `bigquery`."""
