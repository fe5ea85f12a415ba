"""Databases through SQLAlchemy: source and sink."""
