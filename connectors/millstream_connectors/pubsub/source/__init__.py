"""The source of `pubsub`."""
