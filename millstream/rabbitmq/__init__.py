"""An external RabbitMQ server: how pipeline files name it, and the connection to it."""
