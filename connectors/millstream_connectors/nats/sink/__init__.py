"""The sink of `nats`."""
