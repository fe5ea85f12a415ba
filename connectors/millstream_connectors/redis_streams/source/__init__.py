"""The source of `redis_streams`."""
