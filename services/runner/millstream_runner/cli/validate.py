"""`millstream validate`: reports every problem of a pipeline file, and the guarantees of its sources and sinks."""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict
from importlib.util import find_spec
from typing import Any

from millstream import codes
from millstream.errors import MillstreamError, UserError
from millstream.plan.resolved import ResolvedPipeline
from millstream.plan.shape import as_stored, former_keys_text
from millstream.plurals import counted
from millstream.spec.checks import local_problems
from millstream.spec.connectors import Guarantee
from millstream.spec.graph import guarantees_of, promises
from millstream.spec.loading import FileError, LoadedPipeline, Partial, load
from millstream.spec.problems import Finding, Note, Problem, problem_lines
from millstream.spec.sql import doubts_of
from millstream_runner.colours import Style, show, show_message
from millstream_runner.local.directory import DataDirectory, read_json, root_of
from millstream_runner.local.prerequisites import reservation_text, reserved_bytes


def run(arguments: argparse.Namespace) -> int:
    loaded: LoadedPipeline | None = None
    partial: Partial | None = None
    problems: list[Problem] = []
    notes: list[Note] = []
    functions: Sequence[Mapping[str, str]] = ()
    if arguments.import_functions and arguments.file_only:
        raise UserError(
            codes.COMMAND_LINE, "--file-only does not check functions, and --import starts them: give one of them"
        )
    if arguments.online and arguments.file_only:
        raise UserError(
            codes.COMMAND_LINE, "--file-only checks nothing outside the file, and --online does: give one of them"
        )
    try:
        loaded = load(arguments.file)
    except FileError as error:
        problems += error.problems
        partial = error.partial
    if loaded is not None:
        notes += [*loaded.notes, *_notes_of_stored(loaded)]
        if arguments.file_only:
            notes += [
                loaded.note(path, f"{doubt}; without `--file-only`, Spark checks it")
                for path, doubt in doubts_of(loaded.pipeline)
            ]
    known = loaded or partial
    if known is not None and not arguments.file_only:
        _add(problems, local_problems(known))
        _ask_spark(known, problems, notes)
    if known is not None and arguments.online:
        _ask_outside(known, problems)
    if arguments.import_functions:
        functions = _import_functions(loaded, problems, notes)
    guarantees = guarantees_of(loaded.graph) if loaded is not None else {}
    if arguments.json:
        reserved = reserved_bytes(loaded.plan) if loaded is not None else {}
        told = _as_json(str(arguments.file), problems, notes, guarantees) | {"reserved": reserved}
        print(json.dumps(told | ({"functions": functions} if arguments.import_functions else {})))
    else:
        _show(loaded, problems, notes, guarantees)
        for function in functions:
            print(_function_line(function))
    return UserError.exit_code if problems else 0


def _notes_of_stored(loaded: LoadedPipeline) -> list[Note]:
    """What follows from the data that earlier runs have stored in the default data directory."""
    try:
        shape = read_json(DataDirectory(root_of(loaded.pipeline.name, None)).shape)
        if shape is None:
            return []
        stored, _ = as_stored(loaded, shape)
    except MillstreamError:
        # The next run says what is wrong with the directory; the file may still be valid.
        return []
    names = [vertex.name for vertex in loaded.pipeline.spec.vertices]
    return [
        loaded.note(("spec", "vertices", names.index(vertex), "source"), former_keys_text(vertex))
        for vertex in sorted(stored.plan.former_keys)
    ]


def _ask_spark(loaded: LoadedPipeline | Partial, problems: list[Problem], notes: list[Note]) -> None:
    """Add what Spark finds in the queries that can be parsed. A Spark that does not start is a problem, too."""
    queries = sum(vertex.sql is not None for vertex in loaded.sound.values())
    # Without any Spark, that has already been reported as a problem.
    if not queries or find_spec("pyspark") is None:
        return
    # Spark is large, and a pipeline without SQL does not need it.
    from millstream_reduce.spark.aot import advice as cache_advice
    from millstream_runner.local.queries import check_queries

    spark = loaded.pipeline.spec.spark if isinstance(loaded, LoadedPipeline) else None
    what = "a query" if queries == 1 else f"{queries} queries"
    print(f"asking Spark about {what}; this takes some seconds", file=sys.stderr)
    if missing := cache_advice():
        show_message(missing, sys.stderr)
    try:
        verdict = asyncio.run(check_queries(loaded.sound, spark))
    except MillstreamError as error:
        expected = "a Spark that starts on this machine, to check the queries"
        problems.append(loaded.problem(Finding(error.code, ("spec", "spark"), str(error), expected)))
        return
    _add(problems, map(loaded.problem, verdict.problems))
    notes += [loaded.note(path, text) for path, text in verdict.notes]


def _ask_outside(loaded: LoadedPipeline | Partial, problems: list[Problem]) -> None:
    """Add what sources and sinks find when they contact their servers."""
    from millstream_runner.local.online import online_findings

    asked, findings = asyncio.run(online_findings(loaded))
    ends = "source or sink" if asked == 1 else "sources and sinks"
    print(f"asked {asked} {ends} about what they talk to", file=sys.stderr)
    _add(problems, map(loaded.problem, findings))


def _import_functions(
    loaded: LoadedPipeline | None, problems: list[Problem], notes: list[Note]
) -> Sequence[Mapping[str, str]]:
    """Add what starting the functions shows, but for those that have a problem already."""
    if loaded is None:
        print("no function was imported: the file has to be valid first", file=sys.stderr)
        return ()
    # This imports the workers' side, which other commands do not need.
    from millstream_runner.local.function_checks import check_functions

    known = {problem.path for problem in problems}
    verdict = asyncio.run(check_functions(ResolvedPipeline(loaded.plan, loaded.base_dir), known))
    _add(problems, map(loaded.problem, verdict.problems))
    notes += [loaded.note(path, text) for path, text in verdict.notes]
    return verdict.functions


def _add(problems: list[Problem], found: Iterable[Problem]) -> None:
    """Add problems that are not known yet, in the order of the file."""
    known = {(problem.path, problem.what) for problem in problems}
    problems += [problem for problem in found if (problem.path, problem.what) not in known]
    problems.sort(key=lambda problem: (problem.line, problem.column, problem.path))


def _function_line(function: Mapping[str, str]) -> str:
    gives = f", gives {function['gives']}" if function["gives"] else ""
    # A program in Go does not say.
    takes = f" takes {function['takes']}" if function["takes"] else ""
    return f"{function['role']} of {function['vertex']}: {function['function']}{takes}{gives}"


def _as_json(
    file: str, problems: Sequence[Problem], notes: Sequence[Note], guarantees: Mapping[str, Guarantee]
) -> dict[str, Any]:
    return {
        "file": file,
        "valid": not problems,
        "problems": [problem.as_json() for problem in problems],
        "notes": [asdict(note) for note in notes],
        "guarantees": {
            sink: {"id": guarantee.id.value, "sentence": guarantee.sentence} for sink, guarantee in guarantees.items()
        },
    }


def _show(
    loaded: LoadedPipeline | None,
    problems: Sequence[Problem],
    notes: Sequence[Note],
    guarantees: Mapping[str, Guarantee],
) -> None:
    for line in problem_lines(problems):
        print(line, file=sys.stderr)
    if problems:
        show((Style.ERROR, counted(len(problems), "problem")), file=sys.stderr)
    if loaded is not None and not problems:
        vertices, edges = len(loaded.graph.vertices), len(loaded.graph.edges)
        size = f"{counted(vertices, 'vertex', 'vertices')}, {counted(edges, 'edge')}"
        print(f"{loaded.path}: pipeline {loaded.pipeline.name} is valid ({size})")
        print(f"storage reserved on the broker: {reservation_text(loaded.plan)}")
        for chain in loaded.graph.chains:
            print(f"chain {' → '.join(chain)}: one lane without buffers inside, and one commit at its end")
        promised: dict[tuple[str, str], list[str]] = {}
        for vertex, name, guarantee in promises(loaded.graph):
            promised.setdefault((vertex.kind, guarantee.sentence), []).append(name)
        for (kind, sentence), names in promised.items():
            print(f"{kind}{'s' if len(names) > 1 else ''} {', '.join(names)}: {sentence}")
    for note in notes:
        show_message(f"note: {note}", sys.stdout)
