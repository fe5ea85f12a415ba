"""The sink of `sql`."""
