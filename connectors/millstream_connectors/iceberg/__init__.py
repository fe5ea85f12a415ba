"""Tables of Apache Iceberg: source and sink."""
