"""The sink of `redis_streams`."""
