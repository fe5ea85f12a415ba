"""Computes the aggregations of the flights pipeline again, straight from the file, with another engine (DuckDB).

Shares nothing with the pipeline but its input and what it wrote.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import duckdb

TOLERANCE = 1e-9
"""Relative: two engines add numbers up in different orders."""

_FLIGHTS = """
CREATE TABLE flights AS
SELECT carrier, origin, tailnum, CAST(time_hour AS TIMESTAMP) AS hour, CAST(distance AS INT) AS distance,
       TRY_CAST(dep_delay AS INT) AS delay
FROM read_csv(?, all_varchar = true)
"""

_EXPECTED = {
    "hourly": """
        SELECT carrier, hour, count(*) AS flights, avg(delay) AS mean_delay, quantile_cont(delay, 0.95) AS p95_delay
        FROM flights GROUP BY carrier, hour""",
    "daily": """
        SELECT origin, date_trunc('day', hour) AS day, count(*) AS flights, avg(delay) AS mean_delay,
               quantile_cont(delay, 0.95) AS p95_delay
        FROM flights GROUP BY origin, day""",
    "trend": """
        SELECT origin, hour - INTERVAL (back) HOUR AS start, start + INTERVAL 3 HOUR AS end, count(*) AS flights,
               avg(delay) AS mean_delay
        FROM flights, range(3) AS shifts(back) GROUP BY origin, start""",
    "planes": """
        WITH steps AS (
            SELECT *, hour - lag(hour) OVER (PARTITION BY tailnum ORDER BY hour) >= INTERVAL 12 HOUR AS rested
            FROM flights WHERE tailnum IS NOT NULL),
        sessions AS (
            SELECT *, count(*) FILTER (rested) OVER (PARTITION BY tailnum ORDER BY hour) AS session FROM steps)
        SELECT tailnum, min(hour) AS start, max(hour) + INTERVAL 12 HOUR AS end, count(*) AS flights,
               sum(distance) AS miles, coalesce(sum(delay) FILTER (delay > 0), 0) AS minutes_late
        FROM sessions GROUP BY tailnum, session""",
}

_FOUND = {
    "hourly": "SELECT carrier, hour, flights, mean_delay, p95_delay FROM read_parquet('{}/*.parquet')",
    "daily": "SELECT origin, day, flights, mean_delay, p95_delay FROM read_json('{}/*.jsonl')",
    "trend": "SELECT origin, start, \"end\", flights, mean_delay FROM read_parquet('{}/*.parquet')",
    "planes": "SELECT tailnum, start, \"end\", flights, miles, minutes_late FROM read_json('{}/*.jsonl')",
}


@dataclass(frozen=True, slots=True)
class Compared:
    """One aggregation, computed twice."""

    name: str
    expected: int
    """Results."""
    found: int
    differing: int
    """Results that are in one of the two only, or have other numbers."""


def compare(flights: Path, output: Path) -> list[Compared]:
    """Every aggregation, from the CSV file of all flights and from the sinks' directories below `output`."""
    with duckdb.connect() as engine:
        engine.execute("SET TimeZone = 'UTC'")
        engine.execute(_FLIGHTS, [str(flights)])
        return [_compare(engine, name, output / name) for name in _EXPECTED]


def _compare(engine: duckdb.DuckDBPyConnection, name: str, directory: Path) -> Compared:
    expected = _results(engine, _EXPECTED[name])
    rows = engine.execute(_FOUND[name].format(directory)).fetchall()
    found = _results(engine, _FOUND[name].format(directory))
    differing = len(rows) - len(found) + len(expected.keys() ^ found.keys())
    differing += sum(not _same(expected[key], found[key]) for key in expected.keys() & found.keys())
    return Compared(name, len(expected), len(rows), differing)


def _results(engine: duckdb.DuckDBPyConnection, query: str) -> dict[tuple[object, ...], tuple[object, ...]]:
    """The numbers of each result by who and when: the columns before `flights`."""
    engine.execute(f"SELECT * REPLACE ({_as_seconds(engine, query)}) FROM ({query})")
    columns = [column[0] for column in engine.description or []]
    first = columns.index("flights")
    return {row[:first]: row[first:] for row in engine.fetchall()}


def _as_seconds(engine: duckdb.DuckDBPyConnection, query: str) -> str:
    """Times as seconds since the epoch, whatever type a file gave them."""
    columns = [row[0] for row in engine.execute(f"DESCRIBE {query}").fetchall()]
    times = [column for column in columns if column in ("hour", "day", "start", "end")]
    return ", ".join(f'epoch(CAST("{column}" AS TIMESTAMPTZ)) AS "{column}"' for column in times)


def _same(expected: tuple[object, ...], found: tuple[object, ...]) -> bool:
    return all(_close(one, other) for one, other in zip(expected, found, strict=True))


def _close(one: object, other: object) -> bool:
    if not isinstance(one, int | float) or not isinstance(other, int | float):
        return one is None and other is None
    return abs(one - other) <= TOLERANCE * max(1.0, abs(one))
