"""BigQuery: the sink."""
