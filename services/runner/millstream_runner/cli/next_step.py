"""The lines after a run that suggest the next step to a new user."""

from __future__ import annotations

import os
import shlex
from collections.abc import Iterator
from pathlib import Path

from millstream.spec.loading import LoadedPipeline
from millstream_connectors.file.settings import FileSink
from millstream_runner.local.formatting import folded

_SHOWN_MAX = 3


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
    more = len(names) - _SHOWN_MAX
    return ", ".join(names[:_SHOWN_MAX]) + (f" and {more} more" if more > 0 else "")


def _results(loaded: LoadedPipeline) -> Iterator[str]:
    for vertex in loaded.graph.vertices:
        for placed in vertex.ends:
            settings = placed.end.settings
            if isinstance(settings, FileSink):
                directory = loaded.base_dir / settings.path
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
