"""The `nats` sink: subjects without JetStream."""
