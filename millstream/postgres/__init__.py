"""What the source and the sink of PostgreSQL share: how a server is reached, and what its errors mean."""
