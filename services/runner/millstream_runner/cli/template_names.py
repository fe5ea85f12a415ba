"""The templates of `millstream init` and what each shows. It imports nothing that takes time."""

from __future__ import annotations

TEMPLATES = {
    "map": "a function called for each record, with tags and dead letters",
    "reduce": "windows of event time, by a function and by a query (needs the extra `reduce`)",
    "source": "your own source, with a position that makes each record count once",
    "sink": "your own sink, which writes to a database",
    "async": "an async function that calls a service, hundreds of records at once",
    "batch": "a function over batches of records, for models and numpy",
    "http": "records over HTTP, until Ctrl-C",
    "connector": "a package with a sink for other pipelines, and the tests that every sink has to pass",
    "go": "a function in Go (needs Go 1.24)",
}
"""By name; the first is the default."""
