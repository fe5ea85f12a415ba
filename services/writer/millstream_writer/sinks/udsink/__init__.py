"""The sink that a user wrote: `udsink`."""
