"""The source of spool directories."""
