"""What sinks that write into tables of a database have in common."""
