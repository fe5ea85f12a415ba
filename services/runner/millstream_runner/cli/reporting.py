"""The report of `millstream run --report`: collects its contents, and writes it however the run ends.

Above it: `millstream run`. Below it: the page, the recording of the run, files of dead letters, this machine.
"""

from __future__ import annotations

import os
import platform
import shlex
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, replace
from datetime import UTC, datetime
from itertools import islice
from pathlib import Path

import psutil

from millstream import codes
from millstream.errors import InfrastructureError, UserError, first_cause
from millstream.resources import processors
from millstream.spec.loading import LoadedPipeline
from millstream_runner.cli.deadletters import stored_files
from millstream_runner.cli.envelopes import read_files
from millstream_runner.cli.version import versions
from millstream_runner.colours import show_message
from millstream_runner.local.directory import write_text
from millstream_runner.local.recording import Recording
from millstream_runner.local.run import RunOptions, RunResult
from millstream_runner.pictures.report import EXCERPT_CHARS_MAX, SAMPLES_MAX, DeadLetters, Report, report_page

_ENVELOPES_MAX = 10_000
"""The most dead letters that are read; a sink may have millions."""


def check_place(path: Path) -> None:
    """Raise `UserError`, before anything runs, if no report can be written."""
    if path.is_dir():
        raise UserError(codes.OPTION_VALUE, f"--report {path}: this is a directory; name a file, such as report.html")
    directory = path.absolute().parent
    if not directory.is_dir():
        raise UserError(codes.OPTION_VALUE, f"--report {path}: the directory {directory} does not exist")
    if not os.access(directory, os.W_OK):
        raise UserError(codes.OPTION_VALUE, f"--report {path}: cannot write to {directory}")


@dataclass(slots=True)
class Reporting:
    """The contents of the report of a run; `reporting` creates it."""

    recording: Recording = field(default_factory=Recording)
    result: RunResult | None = None
    """None if the run ended with an exception."""
    outcome: str = ""
    """The outcome, in a sentence."""
    is_written: bool = True
    """Whether the report was written, if one was requested."""


@contextmanager
def reporting(path: Path | None, loaded: LoadedPipeline, options: RunOptions) -> Iterator[Reporting]:
    """At the end of the block, write the report of what ran in it, if one was requested and anything ran."""
    report = Reporting()
    began = datetime.now(UTC)
    try:
        yield report
    except Exception as error:
        if path is not None and report.recording.states:
            _write(path, _report(loaded, options, report, began, _text_of(error)))
        raise
    if path is not None:
        report.is_written = _write(path, _report(loaded, options, report, began, ""))


def _text_of(error: Exception) -> str:
    cause = first_cause(error)
    return cause.shown if cause is not None else repr(error)


def _write(path: Path, report: Report) -> bool:
    """Writes it completely or not at all. Returns whether that worked."""
    try:
        if path.exists() and not path.is_file():
            # A pipe, or a device such as /dev/stdout, which a new file must not replace.
            with os.fdopen(os.open(path, os.O_WRONLY), "w", encoding="utf-8") as file:
                file.write(report_page(report))
        else:
            write_text(path.absolute(), report_page(report))
    except (InfrastructureError, OSError) as error:
        show_message(f"error[{codes.CANNOT_WRITE}]: no report was written: {error}", sys.stderr)
        return False
    print(f"report: {path}", file=sys.stderr)
    return True


def _report(loaded: LoadedPipeline, options: RunOptions, report: Reporting, began: datetime, error: str) -> Report:
    report.recording.finish()
    result = report.result
    failure = result.failure if result is not None else None
    if failure is not None:
        error = f"{'error: ' if failure.code is None else ''}{failure.heading}\n{failure.message}"
    letters, remark = _dead_letters(loaded)
    elapsed_s = (datetime.now(UTC) - began).total_seconds()
    return Report(
        graph=loaded.graph,
        recording=report.recording,
        outcome=report.outcome.replace("above", "below") or "ended by the error below",
        is_good=result is not None and result.exit_code == 0,
        elapsed_s=result.elapsed_s if result is not None else elapsed_s,
        began=began.strftime("%Y-%m-%d %H:%M:%S UTC"),
        summary=result.summary if result is not None else None,
        failure=error,
        dead_letters=letters,
        dead_letters_remark=remark,
        environment=_environment(report.recording),
        options={
            "command line": shlex.join(sys.argv),
            "pipeline file": str(loaded.path),
            # Options that were not given are omitted.
            **{name: getattr(value, "value", str(value)) for name, value in asdict(options).items() if value},
        },
    )


def _environment(recording: Recording) -> dict[str, str]:
    memory = psutil.virtual_memory().total / 2**30
    return {
        "ledgers' durability": recording.durability or "not known",
        "system": f"{platform.system()} {platform.release()} ({platform.machine()})",
        "processors": str(processors()),
        "memory": f"{memory:.1f} GiB",
        **versions(),
    }


def _dead_letters(loaded: LoadedPipeline) -> tuple[list[DeadLetters], str]:
    """The dead letters that file sinks have stored, by vertex and reason, and a note on which files were read."""
    if not any(edge.kind == "deadLetter" for edge in loaded.graph.edges):
        return [], ""
    kinds: dict[tuple[str, str], DeadLetters] = {}
    try:
        places = stored_files(loaded.graph, loaded.base_dir)
        for found in islice(read_files(places), _ENVELOPES_MAX):
            envelope = found.envelope
            key = (envelope.vertex, envelope.reason)
            known = kinds.get(key) or DeadLetters(*key, 0, found.place, _excerpt(envelope.value))
            kinds[key] = replace(known, count=known.count + 1)
    except (UserError, OSError) as error:
        return [], f"Stored dead letters could not be shown: {error}"
    shown = sorted(kinds.values(), key=lambda one: -one.count)[:SAMPLES_MAX]
    more = f"; {len(kinds) - len(shown)} other reasons are not shown" if len(kinds) > len(shown) else ""
    is_all = sum(one.count for one in kinds.values()) < _ENVELOPES_MAX
    limit = "" if is_all else f", the first {_ENVELOPES_MAX:,} of them"
    names = ", ".join(str(place) for place in places)
    return (
        shown,
        f"From the files of {names}{limit}, including those of earlier runs{more}. See `millstream deadletters`.",
    )


def _excerpt(value: bytes) -> str:
    text = value[: 4 * EXCERPT_CHARS_MAX].decode(errors="backslashreplace")
    return text if len(text) <= EXCERPT_CHARS_MAX else f"{text[:EXCERPT_CHARS_MAX]}… ({len(value):,} bytes)"
