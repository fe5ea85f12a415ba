"""The sink of spool directories."""
