"""The templates of `millstream init`, each with what it shows. Nothing is imported here that takes time."""

from __future__ import annotations

TEMPLATES = {
    "map": "a function for each record, with tags and dead letters",
    "reduce": "windows of event time, by a function and by a query (needs the extra `reduce`)",
    "source": "a source of your own, whose position counts once",
    "sink": "a sink of your own, into a database",
    "async": "a function that waits for a service, hundreds of records at once",
    "batch": "a function over many records at once, for models and numpy",
    "http": "records by HTTP, until Ctrl-C",
    "connector": "a package with a sink for pipelines of others, and the tests that every sink has to pass",
    "go": "a function in Go (needs Go 1.24)",
}
"""By name; the first is the default."""
