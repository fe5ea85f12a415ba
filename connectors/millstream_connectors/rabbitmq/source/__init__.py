"""The source of `rabbitmq`."""
