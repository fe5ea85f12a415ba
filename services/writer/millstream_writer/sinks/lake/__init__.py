"""What sinks of tables have in common: rows in Arrow, commits by time and size, and who may make them."""
