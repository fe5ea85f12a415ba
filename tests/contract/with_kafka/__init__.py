"""Kafka, and formats with a schema registry: one broker for all of it."""
