"""The sink of `blackhole`."""
