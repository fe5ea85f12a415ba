"""The `redisStreams` sink."""
