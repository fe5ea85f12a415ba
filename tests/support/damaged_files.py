"""Damages files as disks and interrupted copies do."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path


def _page_changed(data: bytes) -> bytes:
    # A Parquet file begins with the pages of its first columns, after four bytes and a header.
    return data[:40] + bytes(byte ^ 0xFF for byte in data[40:90]) + data[90:]


DAMAGES: dict[str, Callable[[bytes], bytes]] = {
    "the half": lambda data: data[: len(data) // 2],
    "nothing": lambda data: b"",
    "another page": _page_changed,
    "another end": lambda data: data[:-30] + bytes(30),
}


def damage(file: Path, how: str) -> None:
    """Change the file in one of the ways of `DAMAGES`."""
    file.write_bytes(DAMAGES[how](file.read_bytes()))
