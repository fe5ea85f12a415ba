"""Tables of databases: their names, and rows from JSON."""
