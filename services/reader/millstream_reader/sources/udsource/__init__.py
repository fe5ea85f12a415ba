"""The source that a user wrote: `udsource`."""
