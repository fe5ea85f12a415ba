"""The user's files that a function was loaded from: it is restarted when one of them changes.

Above it: the command line and the server. Below it: Python's modules and the file system. Files of Python and of
installed packages are omitted, because they do not change while a user writes a function.
"""

from __future__ import annotations

import os
import site
import sys
import sysconfig
import threading
from collections.abc import Iterable, Iterator
from contextlib import suppress

LIST_VARIABLE = "MILLSTREAM_IMPORTED"
"""Environment variable with the file to write the list to, one path per line; unset if nothing reads it."""
_LOOK_INTERVAL_S = 0.5
"""Interval of checks: a function may import more while it runs."""


def keep_listed() -> None:
    """Write the list, if it is requested, and write it again when more was imported."""
    if path := os.environ.get(LIST_VARIABLE):
        _write(path, own_files())
        # A daemon: it has nothing to finish.
        threading.Thread(target=_keep, args=(path,), name="imported files", daemon=True).start()


def list_failed(error: BaseException) -> None:
    """Write the list, if it is requested, for a function that cannot be imported, including the files in `error`, which
    did not become modules."""
    if path := os.environ.get(LIST_VARIABLE):
        _write(path, dict.fromkeys([*own_files(), *_without_installed(_files_of(error))]))


def own_files() -> list[str]:
    """Absolute paths of all imported files, without Python and installed packages."""
    files = (getattr(module, "__file__", None) for module in list(sys.modules.values()))
    return list(_without_installed(file for file in files if isinstance(file, str)))


def _keep(path: str) -> None:
    known = 0
    pause = threading.Event()
    while True:
        if len(sys.modules) != known:
            known = len(sys.modules)
            _write(path, own_files())
        pause.wait(_LOOK_INTERVAL_S)


def _write(path: str, files: Iterable[str]) -> None:
    # Atomically, because it is read at any time. Without it, a change is not noticed, but the function still works.
    with suppress(OSError):
        with open(f"{path}.new", "w", encoding="utf-8", errors="surrogateescape") as file:
            file.writelines(f"{name}\n" for name in files)
        os.replace(f"{path}.new", path)


def _without_installed(files: Iterable[str]) -> Iterator[str]:
    for file in files:
        path = os.path.abspath(file)
        if not path.startswith(_INSTALLED) and os.path.isfile(path):
            yield path


def _files_of(error: BaseException) -> Iterator[str]:
    """Files of the frames of an error and of its causes, and the file of a syntax error."""
    seen: set[int] = set()
    left: list[BaseException | None] = [error]
    while left:
        one = left.pop()
        if one is None or id(one) in seen:
            continue
        seen.add(id(one))
        left += (one.__cause__, one.__context__)
        if isinstance(one, SyntaxError) and one.filename:
            yield one.filename
        trace = one.__traceback__
        while trace is not None:
            yield trace.tb_frame.f_code.co_filename
            trace = trace.tb_next


def _installed() -> tuple[str, ...]:
    places = {sysconfig.get_path(name) for name in ("stdlib", "platstdlib", "purelib", "platlib")}
    places |= {*site.getsitepackages(), site.getusersitepackages(), os.path.dirname(os.path.abspath(__file__))}
    return tuple(os.path.abspath(place) + os.sep for place in places if place)


_INSTALLED = _installed()
