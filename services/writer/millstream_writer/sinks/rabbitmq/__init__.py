"""The `rabbitmq` sink."""
