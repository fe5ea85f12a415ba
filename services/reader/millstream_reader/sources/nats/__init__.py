"""The `nats` source: messages of NATS without JetStream."""
