"""The `bigquery` sink."""
