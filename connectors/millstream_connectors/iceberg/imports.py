"""Keeps pyiceberg from loading Python code by a name in a table or in an answer.

pyiceberg imports classes of files, locations, authentication and catalogs by names, and takes these names from
properties: those of a table's metadata, which every author of the table writes, and those of a catalog's answers. So
its modules get an `importlib` that knows the classes of files alone. pyiceberg then reports any other name as a class
that does not exist, with a `ValueError`. `answers` drops such properties before; this is for code of pyiceberg that
reads a table's own properties. A test searches the installed pyiceberg for further imports.

Above it: `catalogs`. Below it: pyiceberg.
"""

from __future__ import annotations

from types import ModuleType, SimpleNamespace
from typing import Any

import pyiceberg.catalog
import pyiceberg.catalog.rest.auth
import pyiceberg.io
import pyiceberg.io.pyarrow
import pyiceberg.table.locations
from pyiceberg.io.pyarrow import PyArrowFileIO

from millstream_connectors.iceberg.files import DurableFileIO

IMPORTING: tuple[ModuleType, ...] = (
    pyiceberg.catalog,
    pyiceberg.catalog.rest.auth,
    pyiceberg.io,
    pyiceberg.io.pyarrow,
    pyiceberg.table.locations,
)
"""Modules of pyiceberg that import by names out of properties."""
_FILES = SimpleNamespace(PyArrowFileIO=PyArrowFileIO, DurableFileIO=DurableFileIO)
DURABLE = f"{DurableFileIO.__module__}.{DurableFileIO.__qualname__}"
_CLASSES = {DURABLE.rpartition(".")[0]: _FILES, PyArrowFileIO.__module__: _FILES}


class _Imports:
    """In place of `importlib`."""

    def __init__(self, known: dict[str, SimpleNamespace]) -> None:
        self._known = known

    def import_module(self, name: str) -> Any:
        found = self._known.get(name)
        if found is None:
            raise ModuleNotFoundError(f"code that a property names is never loaded: {name!r}")
        return found


def load_nothing_by_name() -> None:
    """From now on, pyiceberg loads no code by a name."""
    for module in IMPORTING:
        vars(module)["importlib"] = _Imports(_CLASSES if module is pyiceberg.io else {})
