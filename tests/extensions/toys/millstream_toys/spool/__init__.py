"""Spool directories: source and sink."""
