"""The source of `nats`."""
