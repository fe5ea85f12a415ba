"""Keeps pyarrow from importing pandas in processes that do not need it.

pyarrow looks for pandas when it creates its first array, so that it recognizes pandas objects. The import takes half a
second of processor time, which a start with several processes pays several times.

Above it: processes that run no users' code. Below it: pyarrow.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType

import pyarrow as pa


class _Hidden(MetaPathFinder):
    """Pandas, while pyarrow looks for it."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if fullname == "pandas":
            raise ModuleNotFoundError("hidden from pyarrow", name=fullname)
        return None


def forgo_pandas() -> None:
    """From now on pyarrow does not recognize pandas objects. Does nothing if pandas has already been imported."""
    if "pandas" in sys.modules:
        return
    hidden = _Hidden()
    sys.meta_path.insert(0, hidden)
    try:
        # It looks once, with its first array.
        pa.array([])
    finally:
        sys.meta_path.remove(hidden)
