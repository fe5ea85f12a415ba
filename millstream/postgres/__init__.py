"""External PostgreSQL servers: how they are named and reached, and what their errors mean."""
