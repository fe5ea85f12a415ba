"""Queues and streams of RabbitMQ: source and sink."""
