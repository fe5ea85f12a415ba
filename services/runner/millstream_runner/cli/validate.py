"""`millstream validate`: everything that is wrong with a pipeline file, and what its sinks promise."""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from importlib.util import find_spec
from typing import Any

from millstream.errors import MillstreamError, UserError
from millstream.spec.checks import local_faults
from millstream.spec.connectors import Guarantee
from millstream.spec.faults import Fault, Finding, Note, fault_lines
from millstream.spec.guarantees import guarantees_of
from millstream.spec.loading import FileError, Loaded, Partial, load
from millstream.spec.sql import doubts_of
from millstream_runner.local.storage import reservation_text, reserved_bytes


def run(arguments: argparse.Namespace) -> int:
    loaded: Loaded | None = None
    partial: Partial | None = None
    faults: list[Fault] = []
    notes: list[Note] = []
    try:
        loaded = load(arguments.file)
    except FileError as error:
        faults += error.faults
        partial = error.partial
    if partial is not None and not arguments.file_only:
        known = {(fault.path, fault.what) for fault in faults}
        faults += [fault for fault in local_faults(partial) if (fault.path, fault.what) not in known]
        _ask_spark(partial, faults, notes)
    if loaded is not None:
        notes += loaded.notes
        if arguments.file_only:
            notes += [
                loaded.note(path, f"{doubt}; without `--file-only` Spark is asked")
                for path, doubt in doubts_of(loaded.pipeline)
            ]
        else:
            faults += local_faults(loaded)
            _ask_spark(loaded, faults, notes)
    guarantees = guarantees_of(loaded.graph) if loaded is not None else {}
    if arguments.json:
        reserved = reserved_bytes(loaded.graph) if loaded is not None else {}
        print(json.dumps(_as_json(str(arguments.file), faults, notes, guarantees) | {"reserved": reserved}))
    else:
        _show(loaded, faults, notes, guarantees)
    return UserError.exit_code if faults else 0


def _ask_spark(loaded: Loaded | Partial, faults: list[Fault], notes: list[Note]) -> None:
    """Add what Spark says of the queries, as far as they can be read. One that does not start is a fault too."""
    queries = sum(vertex.udf is not None and vertex.udf.sql is not None for vertex in loaded.sound.values())
    if not queries or _has_no_spark():
        return
    # Spark is large, and a pipeline without SQL does not need it.
    from millstream_reduce.spark.aot import advice as cache_advice
    from millstream_runner.local.queries import check_queries

    spark = loaded.pipeline.spec.spark if isinstance(loaded, Loaded) else None
    what = "a query" if queries == 1 else f"{queries} queries"
    print(f"asking Spark about {what}; this takes some seconds", file=sys.stderr)
    if missing := cache_advice():
        print(missing, file=sys.stderr)
    try:
        verdict = asyncio.run(check_queries(loaded.sound, spark))
    except MillstreamError as error:
        expected = "a Spark that starts on this machine, to look at the queries"
        faults.append(loaded.fault(Finding(("spec", "spark"), str(error), expected)))
        return
    faults += [loaded.fault(finding) for finding in verdict.faults]
    faults.sort(key=lambda fault: (fault.line, fault.column, fault.path))
    notes += [loaded.note(path, text) for path, text in verdict.notes]


def _has_no_spark() -> bool:
    """Then that is a fault already."""
    return find_spec("pyspark") is None


def _as_json(
    file: str, faults: Sequence[Fault], notes: Sequence[Note], guarantees: Mapping[str, Guarantee]
) -> dict[str, Any]:
    return {
        "file": file,
        "valid": not faults,
        "faults": [asdict(fault) for fault in faults],
        "notes": [asdict(note) for note in notes],
        "guarantees": {
            sink: {"id": guarantee.id.value, "sentence": guarantee.sentence} for sink, guarantee in guarantees.items()
        },
    }


def _show(
    loaded: Loaded | None, faults: Sequence[Fault], notes: Sequence[Note], guarantees: Mapping[str, Guarantee]
) -> None:
    for line in fault_lines(faults):
        print(line, file=sys.stderr)
    if faults:
        print(f"{len(faults)} fault{'' if len(faults) == 1 else 's'}", file=sys.stderr)
    if loaded is not None and not faults:
        vertices, edges = len(loaded.graph.vertices), len(loaded.graph.edges)
        print(f"{loaded.path}: pipeline {loaded.pipeline.name} is valid ({vertices} vertices, {edges} edges)")
        print(f"it reserves of the broker's storage: {reservation_text(loaded.graph)}")
        for sink, guarantee in guarantees.items():
            print(f"sink {sink}: {guarantee.sentence}")
    for note in notes:
        print(f"note: {note}")
