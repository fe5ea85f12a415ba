"""The `udsource`: a source written by the user."""
