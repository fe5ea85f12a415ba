"""The checks of `millstream doctor`: whether a machine has what Millstream, or one pipeline, needs."""
