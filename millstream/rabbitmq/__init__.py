"""A RabbitMQ server outside: how pipeline files name it, and the way to it."""
