"""`python -m millstream_runner.chaos.oracle`: judges a run that is over, and prints its verdict as one JSON object.

Exit code 0: sound. 1: something is violated. 2: it could not be judged, and the last line says why.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from millstream.wire.ledger.v1 import mark_pb2
from millstream_runner.chaos.oracle.account import account_checks, accounts, by_vertex
from millstream_runner.chaos.oracle.checks import Check, checked, verdict
from millstream_runner.chaos.oracle.expected import (
    Series,
    mesh_checks,
    pushed_checks,
    read_inputs,
    received_rows,
    repeats_check,
    windows_checks,
)
from millstream_runner.chaos.oracle.guarantees import sink_checks
from millstream_runner.chaos.oracle.marks import read_marks
from millstream_runner.chaos.oracle.pipeline import OraclePipeline, read_pipeline
from millstream_runner.chaos.oracle.remembered import (
    Deal,
    output_check,
    query_checks,
    refused_check,
    remembered,
    state_checks,
)
from millstream_runner.chaos.oracle.sinks import json_lines, rows_of

_READ_TIMEOUT_S = 1800.0


def main(arguments: Sequence[str] | None = None) -> int:
    """Judge the run. Returns the exit code."""
    options = _parser().parse_args(arguments)
    try:
        pipeline = read_pipeline(options.data_dir / "pipeline.json")
        marks = by_vertex(pipeline, asyncio.run(read_marks(options.data_dir / "broker" / "store", pipeline)))
        report = verdict(_checks(options, pipeline, marks))
    except (OSError, ValueError, KeyError, TimeoutError, subprocess.TimeoutExpired) as error:
        sys.stderr.write(f"it cannot be judged: {error!r}\n")
        return 2
    sys.stdout.write(json.dumps(report) + "\n")
    return 0 if report["sound"] else 1


def _checks(
    options: argparse.Namespace, pipeline: OraclePipeline, marks: dict[tuple[str, str], mark_pb2.Mark]
) -> list[Check]:
    ended = not options.drained
    guarantees = json.loads(options.guarantees.read_bytes()) if options.guarantees is not None else {}
    checks = account_checks(pipeline, marks, ended=ended)
    checks += sink_checks(pipeline, marks, options.sinks, guarantees, options.id, ended=ended)
    if options.expect is not None:
        checks += _expected(options, pipeline, marks)
    if options.inputs is not None:
        nonces, acknowledged = read_inputs(options.inputs)
        rows = {"delivered": received_rows(options.received), "kept": rows_of(options.sinks / "kept")}
        checks += [repeats_check("delivered", options.received), *pushed_checks(nonces, acknowledged, rows)]
    return checks


def _expected(
    options: argparse.Namespace, pipeline: OraclePipeline, marks: dict[tuple[str, str], mark_pb2.Mark]
) -> list[Check]:
    generator = pipeline.vertices["numbers"]["source"]["generator"]
    taken = sum(account.inputs for account in accounts(marks, "numbers"))
    records = taken if options.drained else generator["records"]
    faults = [] if taken == records else [f"{taken:,} of {records:,} read"]
    checks = [checked("numbers", "every record was made once", faults, f"{records:,} records")]
    # What was not made is said once. A run that has failed may have an input without an end.
    records = min(records, taken)
    if options.expect == "state":
        return checks + _remembered(options, pipeline, records)
    if options.expect == "mesh":
        return checks + mesh_checks(records, {name: rows_of(options.sinks / name) for name in pipeline.sinks})
    return checks + windows_checks(Series.of(generator), "results", rows_of(options.sinks / "results"))


def _remembered(options: argparse.Namespace, pipeline: OraclePipeline, records: int) -> list[Check]:
    """Outputs and state of the pipeline `state`, and what queries saw of it."""
    (keys,) = (one["value"] for one in pipeline.vertices["deal"]["udf"]["env"] if one["name"] == "KEYS")
    deal = Deal(int(keys))
    output, totals = output_check("totals", deal, records, rows_of(options.sinks / "totals"))
    refused = (json.loads(row["value"])["number"] for row in rows_of(options.sinks / "refused"))
    checks = [output, refused_check("refused", records, refused)]
    checks += state_checks("remember", deal, records, remembered(_stored_state(options.data_dir, "remember")), totals)
    if options.queries is not None:
        checks += query_checks("remember", list(json_lines(options.queries)))
    return checks


def _stored_state(data_dir: Path, vertex: str) -> Iterator[dict[str, Any]]:
    """What `millstream state` shows of a vertex. Raises `ValueError` if it fails."""
    command = [sys.executable, "-P", "-m", "millstream_runner", "state", "list", vertex, "--count", "0", "-o", "json"]
    command += ["--data-dir", str(data_dir)]
    ended = subprocess.run(command, capture_output=True, check=False, timeout=_READ_TIMEOUT_S)
    if ended.returncode:
        raise ValueError(f"what vertex {vertex} remembers cannot be read: {ended.stderr.decode(errors='replace')}")
    return map(json.loads, ended.stdout.splitlines())


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m millstream_runner.chaos.oracle", description=__doc__)
    parser.add_argument("--data-dir", type=Path, required=True, metavar="DIR", help="of the run")
    parser.add_argument(
        "--sinks", type=Path, required=True, metavar="DIR", help="directory below which file sinks have written"
    )
    parser.add_argument("--guarantees", type=Path, metavar="FILE", help="JSON: the id of each sink's guarantee")
    parser.add_argument(
        "--expect", choices=("mesh", "windows", "state"), help="compute the output that this pipeline must have"
    )
    parser.add_argument("--queries", type=Path, metavar="FILE", help="what queries of the pipeline `state` saw")
    parser.add_argument("--inputs", type=Path, metavar="FILE", help="what the feeder sent to the pipeline `push`")
    parser.add_argument("--received", type=Path, metavar="FILE", help="what the receiver got from the pipeline")
    parser.add_argument("--id", metavar="FIELD", help="member of the rows that names the record")
    parser.add_argument("--drained", action="store_true", help="the run was stopped before its sources had ended")
    return parser


if __name__ == "__main__":
    sys.exit(main())
