"""Messages of NATS without JetStream."""
