"""The contents of the report of a run, and its file.

Above it: `millstream run --report`. Below it: the page, the recording of the run, files of dead letters, this machine.
"""

from __future__ import annotations

import os
import platform
import shlex
import sys
from dataclasses import asdict, replace
from datetime import UTC, datetime
from itertools import islice
from pathlib import Path

import psutil

from millstream import codes
from millstream.errors import InfrastructureError, UserError
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


def report_of(
    loaded: LoadedPipeline,
    options: RunOptions,
    recording: Recording,
    result: RunResult | None,
    outcome: str,
    began: datetime,
    error: str,
) -> Report:
    """The contents. `result`: None if the run ended with an exception. `outcome`: in a sentence; empty if the run did
    not get that far. `error`: the text of the exception."""
    recording.finish()
    failure = result.failure if result is not None else None
    if failure is not None:
        error = f"{'error: ' if failure.code is None else ''}{failure.heading}\n{failure.message}"
    letters, remark = _dead_letters(loaded)
    elapsed_s = (datetime.now(UTC) - began).total_seconds()
    return Report(
        graph=loaded.graph,
        recording=recording,
        outcome=outcome.replace("above", "below") or "ended by the error below",
        is_good=result is not None and result.exit_code == 0,
        elapsed_s=result.elapsed_s if result is not None else elapsed_s,
        began=began.strftime("%Y-%m-%d %H:%M:%S UTC"),
        summary=result.summary if result is not None else None,
        failure=error,
        dead_letters=letters,
        dead_letters_remark=remark,
        environment=_environment(recording),
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


def write_report(path: Path, report: Report) -> bool:
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
