"""The source of `sql`."""
