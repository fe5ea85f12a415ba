"""Tables of BigQuery outside: how pipeline files name them, and the way to them."""
