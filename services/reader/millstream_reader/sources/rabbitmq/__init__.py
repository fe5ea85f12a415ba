"""The `rabbitmq` source."""
