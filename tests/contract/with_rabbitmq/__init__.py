"""RabbitMQ: one server for all of it."""
