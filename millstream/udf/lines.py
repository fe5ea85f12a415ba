"""A process's output, line by line.

Above it: `sidecar.py`. Below it: asyncio's streams. A line without an end does not fill the memory: it is given in
pieces.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

LINE_BYTES_MAX = 64 * 1024


async def read_lines(stream: asyncio.StreamReader, on_line: Callable[[str], None]) -> None:
    """Give every line to `on_line`, until the end of the output. What is not UTF-8 is shown as such."""
    rest = b""
    while data := await stream.read(LINE_BYTES_MAX):
        *lines, rest = (rest + data).split(b"\n")
        if len(rest) >= LINE_BYTES_MAX:
            lines.append(rest)
            rest = b""
        for line in lines:
            on_line(line.rstrip(b"\r").decode(errors="backslashreplace"))
    if rest:
        on_line(rest.decode(errors="backslashreplace"))
