"""The common part of sinks that write to database tables."""
