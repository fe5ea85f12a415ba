"""Sources and sinks that users write."""
