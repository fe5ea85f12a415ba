"""The `redisStreams` source."""
