"""Who did what to a pipeline, and when: an append-only file of JSON lines in its data directory.

    {"time": …, "action": "start", "user": {"id": 1000, "name": "ada", "login": 1000}, "process": 4711,
     "command": ["millstream", "run", "p.yaml"], "pipeline": "p", "spec": "sha256:…", …}

An action is in the file, durably, before it is done: one that cannot be written down is refused. What a run has begun
already (to drain, to end) is not: it goes on with a warning. The file is its owner's alone, `--fresh` leaves it, and it
is bounded by rotation. What is done to a pipeline over another broker stands in a file of the user's own. Above it: the
runner, and the commands that look into a pipeline or change it. Below it: `millstream.audit`.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from millstream.audit import own_file, read_entries, spec_digest, write_entry
from millstream.errors import InfrastructureError, MillstreamError
from millstream.spec import resolved
from millstream.spec.loading import Loaded
from millstream_runner.local.directory import DataDirectory

__all__ = ["entries", "note", "note_elsewhere", "note_going", "pipeline_of", "spec_digest", "until_end"]


def note(directory: DataDirectory, action: str, **more: Any) -> None:
    """Write down that this process is about to do something. Raises `InfrastructureError` where that cannot be
    written."""
    write_entry(directory.audit, action, **{**_pipeline(directory), **more})


def note_elsewhere(loaded: Loaded, action: str, **more: Any) -> None:
    """The same of a pipeline that runs over another broker: in a file of the user's own."""
    write_entry(own_file(), action, **pipeline_of(loaded), **more)


def note_going(directory: DataDirectory, message: Callable[[str], None], action: str, **more: Any) -> None:
    """Write down what a run does that has begun: it is done also where that cannot be written, with a warning."""
    try:
        note(directory, action, **more)
    except InfrastructureError as error:
        message(f"warning: {action!r} is missing from the audit: {error}")


@contextmanager
def until_end(directory: DataDirectory, message: Callable[[str], None]) -> Iterator[dict[str, Any]]:
    """Write down the end of what happens in the block, with what it puts into the mapping, or the error's name."""
    outcome: dict[str, Any] = {}
    try:
        yield outcome
    except BaseException as error:
        outcome["error"] = type(error).__name__
        if isinstance(error, MillstreamError):
            outcome["code"] = error.code.id
        raise
    finally:
        note_going(directory, message, "end", **outcome)


def pipeline_of(loaded: Loaded) -> dict[str, str]:
    """What an entry says of a pipeline that the directory does not hold yet."""
    return {
        "pipeline": loaded.pipeline.name,
        "spec": spec_digest(resolved.dump(loaded.pipeline, loaded.base_dir)),
    }


def entries(directory: DataDirectory) -> Iterator[dict[str, Any]]:
    """What was written down, the oldest first; a line that a full disk has cut is left out."""
    yield from read_entries(directory.audit)


def _pipeline(directory: DataDirectory) -> dict[str, Any]:
    """Which pipeline the directory holds, as far as it holds one."""
    try:
        text = directory.pipeline.read_text(encoding="utf-8")
        return {"pipeline": json.loads(text)["pipeline"]["metadata"]["name"], "spec": spec_digest(text)}
    except (OSError, ValueError, KeyError, TypeError):
        return {}
