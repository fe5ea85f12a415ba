"""`millstream run`: checks the file, runs the pipeline and reports the outcome."""

from __future__ import annotations

import argparse
import json
import sys
from contextlib import suppress
from typing import Any, TextIO

from millstream import codes
from millstream.buffers.registry import over
from millstream.descriptors import PIPE_CLOSED
from millstream.errors import DamageError, InfrastructureError, MillstreamError, UserError
from millstream.ledger.protocol import DurabilityLevel
from millstream.limits import MIB
from millstream.printable import indented
from millstream.spec.checks import local_problems
from millstream.spec.loading import LoadedPipeline, load
from millstream.spec.problems import SpecError
from millstream.spec.sql import doubts_of
from millstream.spec.values import parse_quantity
from millstream_runner.cli.debugged import debugged_functions
from millstream_runner.cli.dry_run import dry_run
from millstream_runner.cli.editor import refresh_schema
from millstream_runner.cli.explain import explained_by
from millstream_runner.cli.next_step import next_step
from millstream_runner.cli.reporting import check_place, reporting
from millstream_runner.colours import show_lines, show_message
from millstream_runner.local import signals
from millstream_runner.local.formatting import duration_text
from millstream_runner.local.prerequisites import check_open_files
from millstream_runner.local.replica import Failure
from millstream_runner.local.run import ABORTED, RunOptions, RunResult
from millstream_runner.local.run import run as run_pipeline
from millstream_runner.local.screen import choose_screen, width_of
from millstream_runner.local.summary import summary_json, summary_lines

_WORKER_MEMORY_MIN = 256 * MIB
"""What a worker with an idle source and sink of any kind takes at most, twice over."""


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
        signals.ignore()
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
    code = f"error[{failure.code}]: " if failure.code is not None else ""
    message = indented(failure.message) or "it logged no error"
    return f"{detail}millstream run: {code}{failure.process} {failure.reason}: {message}\n"


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
