"""Reports user files that change while the pipeline runs and that the run does not reload.

A window gets its result from one version of its function, and Spark's workers have imported it. So a change is reported
but not applied, even with `--watch`.

Above it: the run. Below it: the file system. A worker watches the files of its own functions
(`millstream.udf.sources`); this module watches the pipeline file and the functions of reduces, which run inside Spark.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from millstream.pauses import until_next
from millstream.plurals import counted
from millstream.spec.loading import LoadedPipeline, load
from millstream.spec.problems import SpecError

_LOOK_INTERVAL_S = 0.5


async def watch_files(loaded: LoadedPipeline, message: Callable[[str], None]) -> None:
    """Report each change of one of the files once. Runs until cancelled."""
    functions_of = _functions_in_spark(loaded)
    contents = {path: _contents(path) for path in (loaded.path, *functions_of)}
    while True:
        await asyncio.sleep(until_next(_LOOK_INTERVAL_S))
        for path, before in contents.items():
            # A missing file is being replaced, or the next reader reports it.
            if (now := _contents(path)) in (before, None):
                continue
            contents[path] = now
            if path == loaded.path:
                judged = await _judged(path)
                message(f"{path} changed{judged}, but this run continues with the earlier version: {_AGAIN}")
            else:
                vertices = ", ".join(functions_of[path])
                message(f"{path.name} changed, but {vertices} continues with the earlier version, in Spark: {_AGAIN}")


_AGAIN = "end it with Ctrl-C, which finishes the records in flight, and run it again"


async def _judged(path: Path) -> str:
    """Whether the next run would accept it."""
    try:
        # It takes a while, and the screen must not stop meanwhile.
        await asyncio.to_thread(load, path)
    except SpecError as error:
        return f" (it has {counted(len(error.problems), 'problem')}: see `millstream validate {path}`)"
    return ""


def _functions_in_spark(loaded: LoadedPipeline) -> dict[Path, list[str]]:
    """The files, with the vertices whose functions they contain."""
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
