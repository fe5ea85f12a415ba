"""The sink of `pubsub`."""
