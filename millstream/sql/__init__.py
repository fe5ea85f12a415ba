"""A database outside that SQLAlchemy speaks to: how pipeline files name it, and the way to it."""
