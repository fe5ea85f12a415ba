"""Redis and Valkey as something outside a pipeline: how a server is named and reached, and what its errors mean."""
