"""Connections to a NATS server: its address, the credentials, and requests whose lost answers are reported as such."""
