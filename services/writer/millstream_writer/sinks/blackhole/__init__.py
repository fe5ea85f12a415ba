"""The `blackhole` sink."""
