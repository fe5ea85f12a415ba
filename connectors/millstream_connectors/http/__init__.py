"""HTTP: a source that listens, and a sink that posts."""
