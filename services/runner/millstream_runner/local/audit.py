"""Who did what to a pipeline, and when: an append-only file of JSON lines in its data directory.

    {"time": …, "action": "start", "user": {"id": 1000, "name": "ada", "login": 1000}, "process": 4711,
     "command": ["millstream", "run", "p.yaml"], "pipeline": "p", "spec": "sha256:…", …}

An action is stored durably in the file before it is done; an action that cannot be recorded is refused. What a running
run does (drain, end) is not refused: it continues with a warning. Only the owner can read the file, `--fresh` keeps it,
and rotation limits its size. Actions on a pipeline over another broker are recorded in a file in the user's home
directory. Above it: the runner, and the commands that inspect or change a pipeline. Below it: `millstream.audit`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from millstream.audit import own_file, spec_digest, write_entry
from millstream.errors import InfrastructureError, MillstreamError
from millstream.json_parser import parse_json
from millstream.plan import resolved
from millstream.spec.loading import LoadedPipeline
from millstream_runner.local.directory import DataDirectory


def note(directory: DataDirectory, action: str, **more: Any) -> None:
    """Record that this process is about to do something. Raises `InfrastructureError` if it cannot be recorded."""
    write_entry(directory.audit, action, **{**_pipeline(directory), **more})


def note_elsewhere(loaded: LoadedPipeline, action: str, **more: Any) -> None:
    """Like `note`, for a pipeline that runs over another broker: in a file in the user's home directory."""
    write_entry(own_file(), action, **pipeline_of(loaded), **more)


def note_going(directory: DataDirectory, message: Callable[[str], None], action: str, **more: Any) -> None:
    """Record what a running run does. If that cannot be recorded, it is done anyway, with a warning."""
    try:
        note(directory, action, **more)
    except InfrastructureError as error:
        message(f"warning: {action!r} is missing from the audit: {error}")


@contextmanager
def until_end(directory: DataDirectory, message: Callable[[str], None]) -> Iterator[dict[str, Any]]:
    """Record the end of the block, with what the block puts into the mapping, or with the name of the error."""
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


def pipeline_of(loaded: LoadedPipeline) -> dict[str, str]:
    """What an entry says about a pipeline that is not in the directory yet."""
    return {
        "pipeline": loaded.pipeline.name,
        "spec": spec_digest(resolved.dump(loaded.plan, loaded.base_dir)),
    }


def _pipeline(directory: DataDirectory) -> dict[str, Any]:
    """Which pipeline is in the directory, as far as one is."""
    try:
        text = directory.pipeline.read_text(encoding="utf-8")
        return {"pipeline": parse_json(text)["pipeline"]["metadata"]["name"], "spec": spec_digest(text)}
    except (OSError, ValueError, KeyError, TypeError):
        return {}
