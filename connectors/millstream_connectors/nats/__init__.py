"""Subjects of NATS without JetStream: source and sink."""
