"""A kind of vertex that lets each value through once."""
