"""The common part of table sinks: rows in Arrow, commits by time and size, and ownership."""
