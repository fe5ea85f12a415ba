"""`millstream run`: checks the file, runs the pipeline and reports the outcome, or, with `--dry-run`, what a changed
pipeline requires of the data of its last run. With `--debug-function`, it chooses the ports on which functions wait for
a debugger, and refuses those that no debugger can reach.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import shlex
import sys
from collections.abc import Iterator, Sequence
from contextlib import suppress
from difflib import get_close_matches
from importlib.util import find_spec
from pathlib import Path
from typing import Any, TextIO

from millstream import codes
from millstream.buffers.registry import over
from millstream.descriptors import PIPE_CLOSED
from millstream.errors import DamageError, InfrastructureError, MillstreamError, UserError
from millstream.ledger.protocol import DurabilityLevel
from millstream.limits import MIB
from millstream.plan import resolved
from millstream.plan.diff import Difference, Effect, diff, settings_changed
from millstream.plan.shape import as_stored, shape_of
from millstream.ports import why_not
from millstream.printable import indented
from millstream.spec.checks import local_problems
from millstream.spec.kinds import PlacedProgram
from millstream.spec.loading import LoadedPipeline, load
from millstream.spec.models import Vertex
from millstream.spec.problems import SpecError
from millstream.spec.sql import doubts_of
from millstream.spec.values import parse_quantity
from millstream_runner.cli.editor import refresh_schema
from millstream_runner.cli.explain import explained_by
from millstream_runner.cli.reporting import check_place, reporting
from millstream_runner.colours import show_lines, show_message
from millstream_runner.local.directory import DataDirectory, read_json, root_of
from millstream_runner.local.formatting import duration_text, folded
from millstream_runner.local.outputs import file_sinks
from millstream_runner.local.prerequisites import check_open_files
from millstream_runner.local.replica import Failure
from millstream_runner.local.run import ABORTED, RunOptions, RunResult, ignore_signals
from millstream_runner.local.run import run as run_pipeline
from millstream_runner.local.screen import choose_screen, width_of
from millstream_runner.local.summary import summary_json, summary_lines

_WORKER_MEMORY_MIN = 256 * MIB
"""What a worker with an idle source and sink of any kind takes at most, twice over."""
_MEANINGS = {
    Effect.RESTART: "a restart is enough",
    Effect.DRAIN: "only where no records wait: drain the pipeline first (Ctrl-C)",
    Effect.REFUSED: "never fits what is stored: undo it, or start over (--fresh, or another --data-dir)",
}
_RESULTS_SHOWN_MAX = 3
_DEBUG_HOST = "127.0.0.1"
"""Where functions listen for a debugger."""


def run(arguments: argparse.Namespace) -> int:
    check_open_files()
    loaded = load(arguments.file)
    if arguments.ledger is not None:
        loaded = over(loaded, arguments.ledger)
    for path, doubt in doubts_of(loaded.pipeline):
        show_message(f"warning: {loaded.note(path, doubt)}; `millstream validate` checks it with Spark", sys.stderr)
    problems = local_problems(loaded)
    if problems:
        raise SpecError(problems)
    if arguments.dry_run:
        return dry_run(loaded, arguments)
    refresh_schema(arguments.file)
    import uvloop

    options = RunOptions(
        data_dir=arguments.data_dir,
        fresh=arguments.fresh,
        from_savepoint=arguments.from_savepoint,
        move_outputs=arguments.move_outputs,
        forget=arguments.forget,
        durability=DurabilityLevel(arguments.durability),
        metrics_port_base=arguments.metrics_port_base,
        metrics_host=arguments.metrics_host,
        workers=arguments.workers,
        worker_memory=worker_memory(arguments.worker_memory),
        log_level=arguments.log_level,
        watch=arguments.watch,
        debugged=debugged_functions(loaded, arguments.debug_function, arguments.debug_port),
    )
    if arguments.report is not None:
        check_place(arguments.report)
    screen = choose_screen(sys.stderr, quiet=arguments.quiet)
    with reporting(arguments.report, loaded, options) as report:
        result = uvloop.run(run_pipeline(loaded, options, screen, report.recording))
        ignore_signals()
        report.result, report.outcome = result, how_it_went(result)
    if result.failure is not None and (text := _failure_text(result.failure, debug=arguments.debug)):
        show_message(text.removesuffix("\n"), sys.stderr)
    if result.code is not None:
        print(explained_by(result.code), file=sys.stderr)
    if result.exit_code != PIPE_CLOSED:
        # Where standard output failed, it would not take the result either.
        out = sys.stderr if result.code is codes.OUTPUT_CLOSED else sys.stdout
        _print_result(loaded, result, out, as_json=arguments.json, quiet=arguments.quiet)
    return result.exit_code or (0 if report.is_written else InfrastructureError.exit_code)


def _print_result(loaded: LoadedPipeline, result: RunResult, out: TextIO, *, as_json: bool, quiet: bool) -> None:
    if as_json:
        print(json.dumps({"pipeline": loaded.pipeline.name, **result_json(result)}), file=out)
    elif not quiet or (result.summary is not None and not result.summary.balanced):
        show_lines(result_lines(result, width_of(out)), out)
        if result.exit_code == 0 and result.summary is not None:
            show_lines(next_step(loaded, ended=result.summary.ended, width=width_of(out)), out)


def worker_memory(text: str | None) -> int | None:
    """The bytes of an option. Raises `UserError`."""
    if text is None:
        return None
    with suppress(ValueError):
        if (size := parse_quantity(text)) >= _WORKER_MEMORY_MIN:
            return size
    what = "must be a size such as 512Mi or 4Gi, of 256Mi or more"
    raise UserError(codes.OPTION_VALUE, f"--worker-memory {text!r}: {what}")


def _failure_text(failure: Failure, *, debug: bool) -> str:
    """The part of the message that has not been printed yet."""
    detail = f"{failure.detail}\n" if debug and failure.detail else ""
    if failure.shown:
        return detail
    message = indented(failure.message) or "it logged no error"
    return f"{detail}millstream run: {failure.heading}: {message}\n"


def _is_all_there(result: RunResult) -> bool:
    """Whether nothing is known to be lost: there was no damage or defect, and the account, if read, balances."""
    if result.exit_code in (DamageError.exit_code, MillstreamError.exit_code):
        return False
    return result.exit_code == ABORTED or (result.summary is not None and result.summary.balanced)


def result_json(result: RunResult) -> dict[str, Any]:
    """The outcome of a run, for programs."""
    return {
        "exit_code": result.exit_code,
        "code": result.code.id if result.code is not None else None,
        "failure": result.failure.as_json() if result.failure is not None else None,
        "elapsed_s": round(result.elapsed_s, 3),
        "data_dir": str(result.directory),
        "account": summary_json(result.summary) if result.summary is not None else None,
    }


def how_it_went(result: RunResult) -> str:
    """In a few words."""
    if result.exit_code == ABORTED:
        return "stopped at once"
    if result.failure is not None:
        return "stopped by the failure above"
    if result.summary is None:
        return "stopped before anything was read"
    if result.summary.ended:
        return "done: nothing was left to process" if result.had_ended else "done: everything has been processed"
    return "stopped"


def result_lines(result: RunResult, width: int | None = None) -> list[str]:
    """The outcome of a run, for people: its account, and the next step. `width`: columns of the terminal."""
    lines = list(summary_lines(result.summary, width)) if result.summary is not None else []
    lines.append(f"{how_it_went(result)}, after {duration_text(result.elapsed_s)}")
    if result.exit_code == 0 and result.summary is not None:
        more = "start over with --fresh" if result.summary.ended else "the next run continues from here"
        lines[-1] += f" ({more})"
    elif _is_all_there(result):
        lines.append("nothing is lost; the next run continues from here")
    return [*lines, f"data directory: {result.directory}"]


# The dry run


def dry_run(loaded: LoadedPipeline, arguments: argparse.Namespace) -> int:
    """Prints the differences. Returns the exit code of `run` if it would refuse one of them, and 0 otherwise."""
    directory = DataDirectory(root_of(loaded.pipeline.name, arguments.data_dir))
    if arguments.from_savepoint is not None:
        from millstream_runner.local.savepoints.restoring import plan_restore

        restore = asyncio.run(plan_restore(directory, loaded, arguments.from_savepoint, arguments.forget))
        said = f"the savepoint {restore.savepoint.path} fits the pipeline"
        print(json.dumps({"starts_over": False, "differences": []}) if arguments.json else said)
        return 0
    differences = None if arguments.fresh else _differences(directory, loaded, arguments.forget)
    refused = any(one.effect is Effect.REFUSED for one in differences or ())
    if arguments.json:
        listed = [{"effect": one.effect.value, "what": one.what} for one in differences or ()]
        print(json.dumps({"starts_over": differences is None, "differences": listed}))
    elif differences is None:
        stored = (
            f"removes what is stored in {directory.root}" if arguments.fresh else f"finds nothing in {directory.root}"
        )
        print(f"the run {stored}, and starts from the beginning")
    elif not differences:
        print(f"nothing differs from the last run in {directory.root}")
    else:
        for one in differences:
            print(f"{one.effect.value:<8} {one.what}")
        print()
        for effect in dict.fromkeys(one.effect for one in differences):
            print(f"{effect.value}: {_MEANINGS[effect]}")
    return UserError.exit_code if refused else 0


def _differences(
    directory: DataDirectory, loaded: LoadedPipeline, forget: Sequence[str]
) -> Sequence[Difference] | None:
    """None if nothing is stored. Raises `DamageError` if what is stored cannot be read."""
    before = read_json(directory.shape)
    if before is None:
        return None
    loaded, _ = as_stored(loaded, before)
    found = [*diff(before, shape_of(loaded.plan), forget=forget).differences]
    if directory.pipeline.exists():
        found += settings_changed(resolved.load(directory.read_pipeline()).pipeline, loaded.pipeline)
    return found


# The functions that wait for a debugger (`--debug-function NAME`)


def debugged_functions(loaded: LoadedPipeline, names: Sequence[str], first_port: int) -> dict[str, int]:
    """The port of replica 0 of each named vertex. Raises `UserError`, with what to do instead, if no debugger can be
    attached.
    """
    ports: dict[str, int] = {}
    port = first_port
    for name in dict.fromkeys(names):
        vertex = _debugged_vertex(loaded, name)
        _check_debugging(vertex)
        for taken in range(port, port + vertex.replicas):
            if (reason := why_not(taken, _DEBUG_HOST)) is not None:
                raise UserError(
                    codes.PORTS_TAKEN,
                    f"--debug-function {name}: cannot listen for a debugger on {_DEBUG_HOST}:{taken}: {reason}; choose "
                    "another --debug-port",
                )
        ports[name] = port
        port += vertex.replicas
    return ports


def _debugged_vertex(loaded: LoadedPipeline, name: str) -> Vertex:
    vertices = {vertex.name: vertex for vertex in loaded.graph.vertices}
    if name in vertices:
        return vertices[name]
    having = [vertex.name for vertex in vertices.values() if any(True for _ in vertex.programs)]
    near = get_close_matches(name, having, 1)
    meant = f"did you mean {near[0]}? " if near else ""
    raise UserError(
        codes.NOT_IN_PIPELINE,
        f"--debug-function {name}: pipeline {loaded.pipeline.name} has no such vertex; {meant}"
        f"Vertices with a function: {', '.join(having) or 'none'}",
    )


def _check_debugging(vertex: Vertex) -> None:
    placed = list(vertex.programs)
    refusals = [_why_not_debugged(one) for one in placed] or ["it has no function"]
    if None not in refusals:
        raise UserError(codes.OPTIONS_CONFLICT, f"--debug-function {vertex.name}: {'; '.join(filter(None, refusals))}")
    if any(one.beside and one.program.python is not None for one in placed) and find_spec("debugpy") is None:
        raise UserError(
            codes.EXTRA_NEEDED,
            f"--debug-function {vertex.name}: the package debugpy is not installed: `pip install 'millstream[debug]'`",
        )


def _why_not_debugged(placed: PlacedProgram) -> str | None:
    """Why no debugger can be attached to a program, and what to do instead; None if one can."""
    program = placed.program
    if program.python is not None and sys.platform != "linux":
        return "any user of this machine could attach a debugger, because only Linux tells who connects"
    if not placed.beside:
        return (
            "it runs inside Spark, which no debugger can attach to: call it in a test with "
            "`millstream_udf.testing.run_windows`, and debug the test"
        )
    if program.address is not None or program.container is not None:
        return "this run does not start it: attach a debugger where it runs"
    if program.python is None and program.command is None:
        return "it is a built-in function"
    if program.sandbox is not None and not program.network:
        return "no debugger can reach into its sandbox: remove `sandbox` from the pipeline file while you debug"
    return None


# The lines after a run that suggest the next step to a new user


def next_step(loaded: LoadedPipeline, *, ended: bool, width: int | None = None) -> list[str]:
    """Lines that say where the results are and which file to change. `ended`: another run on the same data has nothing
    left to do. `width`: columns of the terminal. Empty if there is neither a file with results nor one to change.
    """
    results = list(dict.fromkeys(_results(loaded)))
    look = f"look into {_listed(results)}" if results else ""
    change = ""
    if (first := next(_changes(loaded), None)) is not None:
        what, is_reloaded = first
        again = " --fresh --move-outputs" if ended and results else " --fresh" if ended else ""
        command = f"millstream run {shlex.quote(str(loaded.path))}{again}"
        change = f"{what} and `{command}`" + (" (or use --watch)" if is_reloaded else "")
    steps = "; ".join(filter(None, (look, change)))
    return folded(f"next: {steps}", width, indent=len("next: ")) if steps else []


def _listed(names: list[str]) -> str:
    more = len(names) - _RESULTS_SHOWN_MAX
    return ", ".join(names[:_RESULTS_SHOWN_MAX]) + (f" and {more} more" if more > 0 else "")


def _results(loaded: LoadedPipeline) -> Iterator[str]:
    for _, path in file_sinks(loaded.graph):
        directory = loaded.base_dir / path
        if directory.is_dir() and any(not name.startswith(".") for name in os.listdir(directory)):
            yield os.path.relpath(directory)


def _changes(loaded: LoadedPipeline) -> Iterator[tuple[str, bool]]:
    """What to change of each function whose file is in this directory, and whether `--watch` applies the change. A
    window keeps the function with which it began.
    """
    for vertex in loaded.graph.vertices:
        for placed in vertex.programs:
            place = loaded.base_dir / (placed.program.working_dir or Path())
            file = (placed.program.python or "").rpartition(":")[0]
            program = (placed.program.command or [""])[0]
            if file.endswith(".py") and (place / file).is_file():
                yield f"change {os.path.relpath(place / file)}", not vertex.definition.has_windows
            elif "/" in program and not os.path.isabs(program) and (place / program).is_file():
                yield f"build {os.path.relpath(place / program)} again", True
