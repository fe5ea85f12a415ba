"""Functions that send their outputs while they make them."""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import millstream_udf as udf

LARGE = b"." * 1_200_000
"""An output that fills a piece."""


def until(path: Path) -> None:
    """Wait for a file of the test."""
    while not path.exists():
        threading.Event().wait(0.005)


def waiting(value: bytes) -> Iterator[bytes]:
    """A large output, and another one when there is the file that the value names."""
    yield b"first"
    yield LARGE
    until(Path(os.fsdecode(value)))
    yield b"last"


async def waiting_async(value: bytes) -> AsyncIterator[bytes]:
    yield b"first"
    yield LARGE
    await asyncio.to_thread(until, Path(os.fsdecode(value)))
    yield b"last"


@udf.map(threads=3)
def waiting_in_threads(value: bytes) -> Iterator[bytes]:
    yield from waiting(value)


def failing(value: bytes) -> Iterator[bytes]:
    """Fails in the middle of an input that says so."""
    yield value
    yield LARGE
    if value == b"fail":
        raise ValueError("in the middle")
    if value == b"exit":
        os._exit(3)
    yield value


def endless(value: bytes) -> Iterator[bytes]:
    """Outputs of 1 MiB, without an end."""
    while True:
        yield bytes(1 << 20)


@udf.map(batch=True)
def together(values: list[bytes]) -> list[bytes]:
    return values
