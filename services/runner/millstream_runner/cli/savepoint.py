"""`millstream savepoint`: takes a savepoint of a pipeline that is not running, or lists those that there are."""

from __future__ import annotations

import argparse
import asyncio
from pathlib import Path
from typing import Any

from millstream import codes
from millstream.dead_letter import time_text
from millstream.errors import UserError
from millstream.plan import resolved
from millstream.plan.plan import Plan
from millstream.plurals import counted
from millstream_runner.cli.answer import answer
from millstream_runner.cli.place import directory_of, is_pipeline_file
from millstream_runner.local.changing import check_complete
from millstream_runner.local.directory import DataDirectory
from millstream_runner.local.processes import is_alive
from millstream_runner.local.savepoints.files import find_savepoint, named
from millstream_runner.local.savepoints.taking import take


def run(arguments: argparse.Namespace) -> int:
    if arguments.of is None and is_pipeline_file(arguments.name):
        # `millstream savepoint pipeline.yaml` lists those of that pipeline.
        arguments.of, arguments.name = Path(arguments.name), None
    directory = directory_of(arguments)
    parent: Path = arguments.to or directory.savepoints
    if arguments.name is None:
        return _list(arguments, parent)
    check_complete(directory)
    plan = resolved.load(directory.read_pipeline()).plan
    _check_stopped(directory, plan)
    taken = asyncio.run(take(directory, plan, arguments.name, parent))
    path, entries = taken.path.absolute(), counted(taken.entries, "entry", "entries")
    said = f"savepoint {arguments.name}: {counted(taken.lanes, 'lane')}, {entries} of states, in {path}"
    facts = {"name": arguments.name, "path": str(path), "lanes": taken.lanes, "entries": taken.entries}
    answer(arguments, facts, [said, f"next: millstream run PIPELINE --data-dir DIR --from-savepoint {path}"])
    return 0


def _check_stopped(directory: DataDirectory, plan: Plan) -> None:
    """Raise `UserError` while the pipeline runs: its lanes belong to its workers."""
    runtime = directory.read_runtime()
    if runtime is not None and is_alive(runtime.runner):
        raise UserError(
            codes.PIPELINE_RUNS,
            f"pipeline {plan.pipeline.name} is running (process {runtime.runner.pid}): drain it with Ctrl-C, take the "
            "savepoint, and run it again",
        )


def _list(arguments: argparse.Namespace, parent: Path) -> int:
    facts: list[dict[str, Any]] = []
    for name in named(parent):
        found = find_savepoint(name, [parent])
        facts.append({"path": str(found.path), **{key: found.facts[key] for key in found.facts if key != "files"}})
    lines = [
        f"{one['name']}: taken at {time_text(one['created_us'])} by version {one['millstream']}, "
        f"{counted(one['entries'], 'entry', 'entries')} of states"
        for one in facts
    ]
    answer(arguments, facts, lines or [f"no savepoint in {parent}"])
    return 0
