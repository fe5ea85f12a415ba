"""`python -m millstream_runner.chaos.oracle`: judges a run that is over, and prints its verdict as one JSON object.

Exit code 0: sound. 1: something is violated. 2: it could not be judged, and the last line says why.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
from collections.abc import Sequence
from pathlib import Path

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
from millstream_runner.chaos.oracle.sinks import rows_of


def main(arguments: Sequence[str] | None = None) -> int:
    """Judge the run. Returns the exit code."""
    options = _parser().parse_args(arguments)
    try:
        pipeline = read_pipeline(options.data_dir / "pipeline.json")
        marks = by_vertex(pipeline, asyncio.run(read_marks(options.data_dir / "broker" / "store", pipeline)))
        report = verdict(_checks(options, pipeline, marks))
    except (OSError, ValueError, KeyError, TimeoutError) as error:
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
    if options.expect == "mesh":
        return checks + mesh_checks(records, {name: rows_of(options.sinks / name) for name in pipeline.sinks})
    return checks + windows_checks(Series.of(generator), "results", rows_of(options.sinks / "results"))


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m millstream_runner.chaos.oracle", description=__doc__)
    parser.add_argument("--data-dir", type=Path, required=True, metavar="DIR", help="of the run")
    parser.add_argument(
        "--sinks", type=Path, required=True, metavar="DIR", help="directory below which file sinks have written"
    )
    parser.add_argument("--guarantees", type=Path, metavar="FILE", help="JSON: the id of each sink's guarantee")
    parser.add_argument("--expect", choices=("mesh", "windows"), help="compute the output that this pipeline must have")
    parser.add_argument("--inputs", type=Path, metavar="FILE", help="what the feeder sent to the pipeline `push`")
    parser.add_argument("--received", type=Path, metavar="FILE", help="what the receiver got from the pipeline")
    parser.add_argument("--id", metavar="FIELD", help="member of the rows that names the record")
    parser.add_argument("--drained", action="store_true", help="the run was stopped before its sources had ended")
    return parser


if __name__ == "__main__":
    sys.exit(main())
