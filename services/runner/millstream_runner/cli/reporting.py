"""`millstream run --report`: records the run, and writes the report of it however the run ends.

Above it: `millstream run`. Below it: the recording of the run, and the contents of the report, which are imported when
there is one to write.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path

from millstream import codes
from millstream.errors import UserError, first_cause
from millstream.spec.loading import LoadedPipeline
from millstream_runner.local.recording import Recording
from millstream_runner.local.run import RunOptions, RunResult


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
            _write(path, loaded, options, report, began, _text_of(error))
        raise
    if path is not None:
        report.is_written = _write(path, loaded, options, report, began, "")


def _write(
    path: Path, loaded: LoadedPipeline, options: RunOptions, report: Reporting, began: datetime, error: str
) -> bool:
    # Not above: most runs have no report.
    from millstream_runner.cli.report_contents import report_of, write_report

    recording, result = report.recording, report.result
    return write_report(path, report_of(loaded, options, recording, result, report.outcome, began, error))


def _text_of(error: Exception) -> str:
    cause = first_cause(error)
    return cause.shown if cause is not None else repr(error)
