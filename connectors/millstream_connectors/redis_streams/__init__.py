"""Streams of Redis and Valkey: source and sink."""
