"""The demo's aggregation by a reduce, and by Spark Structured Streaming over the same file.

    python benchmarks/structured_streaming.py [--json]

Flights, mean and 95th percentile of the departure delay per carrier and hour, over the 336,776 flights of 2013 in the
order in which they left, with a watermark of 24 hours, written as Parquet. Millstream reads the file record by record
through its broker, fsynced, exactly once; Structured Streaming reads it as a directory of files (as its file source
wants it, one batch after another, exactly once) with its checkpoint on the same disk. Both are measured from their
start, Spark's included, to their last result. The results are compared. Exit code 1 when they differ.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
import time
from pathlib import Path

import duckdb
import uvloop
from observed_run import machine, open_run
from pyspark.sql import SparkSession, functions

from millstream_reduce.spark.session import open_session
from millstream_reduce.spark.settings import SparkSettings

FILES = 20
"""Structured Streaming gets the file in so many parts, one for each of its batches: fewer are faster, and later."""

PIPELINE = """\
apiVersion: millstream.io/v1alpha1
kind: Pipeline
metadata: {name: peer}
spec:
  watermark: {maxDelay: 24h}
  vertices:
    - name: flights
      source:
        file:
          paths: [flights.csv]
          format: csv
        eventTime: {field: time_hour}
        keys: [carrier]
    - name: hourly
      udf:
        groupBy: {window: {fixed: {length: 1h}}, keyed: true}
        sql:
          query: >
            SELECT key AS carrier, window_start AS hour, count(*) AS flights,
                   avg(value.dep_delay) AS mean_delay, percentile(value.dep_delay, 0.95) AS p95_delay
            FROM window GROUP BY key, window_start
          value: {format: json, fields: "dep_delay INT"}
    - name: out
      sink:
        file:
          path: out
          format: parquet
          columns:
            - {name: carrier, type: string}
            - {name: hour, type: timestamp}
            - {name: flights, type: int}
            - {name: mean_delay, type: float}
            - {name: p95_delay, type: float}
  edges:
    - {from: flights, to: hourly}
    - {from: hourly, to: out}
"""


async def by_millstream(directory: Path) -> float:
    """Seconds from the start of the run to the last commit of the sink."""
    async with open_run(directory, {"pipeline.yaml": PIPELINE}) as run:
        begun_s = run.now_s()
        ended = await run.ended(timeout_s=300.0)
        if not ended.balanced:
            sys.exit(f"the run did not end well:\n{ended.output}")
        return run.last_count_s("out") - begun_s


def by_structured_streaming(spark: SparkSession, directory: Path) -> None:
    """Compute it, to the end."""
    flights = (
        spark.readStream.schema("carrier STRING, time_hour TIMESTAMP, dep_delay INT")
        .option("header", "true")
        .option("maxFilesPerTrigger", 1)
        .csv(str(directory / "parts"))
    )
    hourly = (
        flights.withWatermark("time_hour", "24 hours")
        .groupBy(functions.window("time_hour", "1 hour"), "carrier")
        .agg(
            functions.count("*").alias("flights"),
            functions.avg("dep_delay").alias("mean_delay"),
            functions.expr("percentile(dep_delay, 0.95)").alias("p95_delay"),
        )
        .select("carrier", functions.col("window.start").alias("hour"), "flights", "mean_delay", "p95_delay")
    )
    query = (
        hourly.writeStream.format("parquet")
        .outputMode("append")
        .option("path", str(directory / "peer"))
        .option("checkpointLocation", str(directory / "checkpoint"))
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()


def write_inputs(directory: Path) -> int:
    """The flights in the order in which they left, whole and in parts. Returns how many there are."""
    flights = prepared_flights()
    whole = flights.read_text(encoding="utf-8").splitlines(keepends=True)
    (directory / "flights.csv").write_text("".join(whole), encoding="utf-8")
    (directory / "parts").mkdir()
    with duckdb.connect() as engine:
        engine.execute("SET preserve_insertion_order = true")
        engine.execute(
            "CREATE TABLE flights AS SELECT carrier, time_hour, dep_delay, row_number() OVER () AS number "
            "FROM read_csv(?, all_varchar = true)",
            [str(flights)],
        )
        records = len(whole) - 1
        size = -(-records // FILES)
        for part in range(FILES):
            # Parts are taken in the order of their times of change.
            path = directory / "parts" / f"{part:03}.csv"
            engine.execute(
                f"COPY (SELECT carrier, time_hour, dep_delay FROM flights WHERE number > {part * size} "
                f"AND number <= {(part + 1) * size} ORDER BY number) TO '{path}' (HEADER)"
            )
            os.utime(path, (1_700_000_000 + part, 1_700_000_000 + part))
    return records


def prepared_flights() -> Path:
    """The demo's input; made by `make demo`."""
    path = Path(__file__).resolve().parent.parent / "examples" / "flights" / "data" / "flights.csv"
    if not path.exists():
        sys.exit(f"{path} is missing: `make demo` writes it")
    return path


def differing(directory: Path) -> tuple[int, int]:
    """Windows of Structured Streaming that Millstream has otherwise, and how many there are. Those that a watermark has
    not closed at the end of the file Structured Streaming leaves out."""
    with duckdb.connect() as engine:
        engine.execute("SET TimeZone = 'UTC'")
        compared = engine.execute(
            f"""SELECT count(*) FILTER (ours.flights IS DISTINCT FROM peer.flights
                    OR abs(ours.mean_delay - peer.mean_delay) > 1e-9 OR abs(ours.p95_delay - peer.p95_delay) > 1e-9),
                count(*)
            FROM '{directory}/peer/*.parquet' AS peer
            LEFT JOIN '{directory}/out/*.parquet' AS ours
                ON ours.carrier = peer.carrier AND epoch(ours.hour) = epoch(peer.hour)"""
        ).fetchone()
    assert compared is not None, "an aggregation has a row"
    return compared[0], compared[1]


async def measure(directory: Path) -> dict[str, object]:
    """Both, one after the other."""
    records = write_inputs(directory)
    ours_s = await by_millstream(directory)
    begun_s = time.monotonic()
    async with open_session(SparkSettings(directory / "spark")) as session:
        await session.run(by_structured_streaming, directory)
        peer_s = time.monotonic() - begun_s
    different, windows = differing(directory)
    return {
        "benchmark": "structured_streaming",
        "records": records,
        "millstream_records_per_s": round(records / ours_s),
        "structured_streaming_records_per_s": round(records / peer_s),
        "ratio": round(peer_s / ours_s, 2),
        "windows_compared": windows,
        "windows_different": different,
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", action="store_true", help="print one JSON object on the last line")
    options = parser.parse_args()
    place = machine()
    with tempfile.TemporaryDirectory(prefix="millstream-benchmark-") as name:
        result = uvloop.run(measure(Path(name)))
    if options.json:
        print(json.dumps({**result, "machine": place}))
    else:
        print(f"Millstream {result['millstream_records_per_s']:,} records/s, Structured Streaming")
        print(f"{result['structured_streaming_records_per_s']:,}: {result['ratio']} times as fast; {place}")
        print(f"{result['windows_different']} of {result['windows_compared']} windows differ")
    return 1 if result["windows_different"] else 0


if __name__ == "__main__":
    sys.exit(main())
