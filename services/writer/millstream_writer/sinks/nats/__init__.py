"""Subjects of NATS without JetStream."""
