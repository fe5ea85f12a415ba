"""Files of the user's that change while the pipeline runs, and that the run does not take in: which, and what to do.

A window gets its result from one version of its function, and Spark's workers have imported it: so a change is said,
and not taken in, also with `--watch`.

Above it: the run. Below it: the file system. Files of functions that run beside a worker are the worker's to look at
(`millstream.udf.sources`); here are the pipeline file, and the functions of reduces, which run inside Spark.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from millstream.pauses import until_next
from millstream.spec.loading import Loaded, load
from millstream.spec.problems import SpecError

_LOOK_INTERVAL_S = 0.5


async def watch_files(loaded: Loaded, message: Callable[[str], None]) -> None:
    """Say so when one of the files has changed, once for each change. Until cancelled."""
    functions_of = _functions_in_spark(loaded)
    functions = {path: _contents(path) for path in functions_of}
    pipeline = _contents(loaded.path)
    while True:
        await asyncio.sleep(until_next(_LOOK_INTERVAL_S))
        # A file that is gone is being replaced, or the next reader reports it.
        if (now := _contents(loaded.path)) not in (pipeline, None):
            pipeline = now
            judged = await _judged(loaded.path)
            message(f"{loaded.path} changed{judged}, but this run continues with the earlier version: {_AGAIN}")
        for path, before in functions.items():
            if (now := _contents(path)) not in (before, None):
                functions[path] = now
                vertices = ", ".join(functions_of[path])
                message(f"{path.name} changed, but {vertices} continues with the earlier version, in Spark: {_AGAIN}")


_AGAIN = "end it with Ctrl-C, which finishes the records in flight, and run it again"


async def _judged(path: Path) -> str:
    """Whether the next run would take it."""
    try:
        # It takes a while, and the screen goes on.
        await asyncio.to_thread(load, path)
    except SpecError as error:
        count = len(error.problems)
        return f" (it has {count} problem{'' if count == 1 else 's'}: see `millstream validate {path}`)"
    return ""


def _functions_in_spark(loaded: Loaded) -> dict[Path, list[str]]:
    """Their files, with the vertices whose functions they are."""
    found: dict[Path, list[str]] = {}
    for vertex in loaded.graph.vertices:
        for placed in vertex.programs:
            if not placed.beside and placed.program.python is not None:
                where = placed.program.python.rpartition(":")[0]
                name = where if where.endswith(".py") else f"{where.replace('.', '/')}.py"
                path = loaded.base_dir / (placed.program.working_dir or Path()) / name
                if path.is_file():
                    found.setdefault(path, []).append(vertex.name)
    return found


def _contents(path: Path) -> bytes | None:
    with suppress(OSError):
        return path.read_bytes()
    return None
