"""`millstream validate`: everything that is wrong with a pipeline file, and what its sinks promise."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

from millstream.errors import UserError
from millstream.spec.checks import local_faults
from millstream.spec.faults import Fault, Note, SpecError
from millstream.spec.guarantees import Guarantee, guarantees_of
from millstream.spec.loading import Loaded, load


def run(arguments: argparse.Namespace) -> int:
    loaded: Loaded | None = None
    faults: Sequence[Fault] = ()
    try:
        loaded = load(arguments.file)
        faults = () if arguments.file_only else local_faults(loaded)
    except SpecError as error:
        faults = error.faults
    notes = loaded.notes if loaded is not None else ()
    guarantees = guarantees_of(loaded.graph) if loaded is not None else {}
    if arguments.json:
        print(json.dumps(_as_json(str(arguments.file), faults, notes, guarantees)))
    else:
        _show(loaded, faults, notes, guarantees)
    return UserError.exit_code if faults else 0


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
