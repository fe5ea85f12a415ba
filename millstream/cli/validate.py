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
from millstream.spec.faults import Fault, Finding, Note, SpecError
from millstream.spec.guarantees import Guarantee, guarantees_of
from millstream.spec.loading import Loaded, load
from millstream.spec.resolved import Resolved
from millstream.spec.sql import doubts_of, queries_of


def run(arguments: argparse.Namespace) -> int:
    loaded: Loaded | None = None
    faults: list[Fault] = []
    notes: list[Note] = []
    try:
        loaded = load(arguments.file)
    except SpecError as error:
        faults += error.faults
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
        print(json.dumps(_as_json(str(arguments.file), faults, notes, guarantees)))
    else:
        _show(loaded, faults, notes, guarantees)
    return UserError.exit_code if faults else 0


def _ask_spark(loaded: Loaded, faults: list[Fault], notes: list[Note]) -> None:
    """Add what Spark says of the pipeline's queries. One that does not start is a fault too."""
    queries = len(queries_of(loaded.pipeline))
    if not queries or _has_no_spark():
        return
    # Spark is large, and a pipeline without SQL does not need it.
    from millstream.local.queries import check_queries

    what = "a query" if queries == 1 else f"{queries} queries"
    print(f"asking Spark about {what}; this takes some seconds", file=sys.stderr)
    try:
        verdict = asyncio.run(check_queries(Resolved(loaded.pipeline, loaded.graph, loaded.base_dir)))
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
    for fault in faults:
        print(fault, file=sys.stderr)
    if faults:
        print(f"{len(faults)} fault{'' if len(faults) == 1 else 's'}", file=sys.stderr)
    if loaded is not None and not faults:
        vertices, edges = len(loaded.graph.vertices), len(loaded.graph.edges)
        print(f"{loaded.path}: pipeline {loaded.pipeline.name} is valid ({vertices} vertices, {edges} edges)")
        for sink, guarantee in guarantees.items():
            print(f"sink {sink}: {guarantee.sentence}")
    for note in notes:
        print(f"note: {note}")
