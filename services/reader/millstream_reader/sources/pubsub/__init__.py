"""The `pubsub` source."""
