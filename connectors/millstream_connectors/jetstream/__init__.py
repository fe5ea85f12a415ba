"""Streams of NATS JetStream: source and sink."""
