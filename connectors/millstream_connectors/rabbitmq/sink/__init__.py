"""The sink of `rabbitmq`."""
