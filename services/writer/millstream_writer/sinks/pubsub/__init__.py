"""The `pubsub` sink."""
