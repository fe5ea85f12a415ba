"""Tables of files, which Delta Lake and Iceberg keep: reading row by row, and commits by time and size."""
