"""Which files of the user's a function was made of: it is restarted when one of them changes.

Above it: the command line and the server. Below it: Python's modules and the file system. What came with Python and
what was installed are left out: those do not change while one writes a function.
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
"""Environment variable with the file to write the list into, a path a line; not set where nothing reads it."""
_LOOK_INTERVAL_S = 0.5
"""A function may import more while it runs."""


def keep_listed() -> None:
    """Write the list, if one is asked for, and write it again when more has been imported."""
    if path := os.environ.get(LIST_VARIABLE):
        _write(path, own_files())
        # A daemon: it has nothing to finish.
        threading.Thread(target=_keep, args=(path,), name="imported files", daemon=True).start()


def list_failed(error: BaseException) -> None:
    """Write the list, if one is asked for, of a function that cannot be imported: with the files that `error` names,
    which are not modules because of it."""
    if path := os.environ.get(LIST_VARIABLE):
        _write(path, dict.fromkeys([*own_files(), *_without_installed(_files_of(error))]))


def own_files() -> list[str]:
    """Absolute paths of all that has been imported, but for Python and what is installed."""
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
    # Whole or not at all: it is read at any time. Without it a change is not noticed; the function can do without.
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
    """Of the frames of an error and of its causes, and the one that a syntax error is in."""
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
