"""PostgreSQL: a source of queries and changes, and a sink."""
