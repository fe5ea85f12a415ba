"""NATS JetStream: ledgers are streams, OT stores are key-value buckets, the embedded broker is a nats-server."""
