"""Buffers in SQLite: ledgers and OT stores of a pipeline, in one file and without a server."""
