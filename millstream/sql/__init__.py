"""An external database, through SQLAlchemy: how pipeline files name it, and the connection to it."""
