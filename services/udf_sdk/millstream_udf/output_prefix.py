"""Labels every line that a function prints with its group.

Above it: `reducing`. Below it: `sys.stdout` and `sys.stderr`. In a Spark worker, and among many groups, a line without
its window and key would be useless. A label belongs to a context (`contextvars`), so concurrent groups have their own.
"""

from __future__ import annotations

import io
import sys
from contextvars import ContextVar
from typing import TextIO

_label: ContextVar[_Label | None] = ContextVar("millstream_udf_label", default=None)


class _Label:
    __slots__ = ("begun", "name", "source")

    def __init__(self, source: object, name: str) -> None:
        self.source = source
        self.name = name
        self.begun: dict[_Labelled, str] = {}
        """Beginning of an incomplete line, by stream."""


class _Labelled(io.TextIOBase):
    """A text stream that begins each line with the label of its writer."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def write(self, text: str, /) -> int:
        label = _label.get()
        if label is None:
            return self._stream.write(text)
        *lines, rest = (label.begun.pop(self, "") + text).split("\n")
        if rest:
            label.begun[self] = rest
        if lines:
            # One write for each line, so that lines of several processes do not mix.
            begin = f"{label.name} {label.source}".lstrip()
            for line in lines:
                self._stream.write(f"{begin}: {line}\n")
            self._stream.flush()
        return len(text)

    def flush(self) -> None:
        self._stream.flush()

    def writable(self) -> bool:
        return True

    def fileno(self) -> int:
        return self._stream.fileno()

    def isatty(self) -> bool:
        return self._stream.isatty()

    @property
    def encoding(self) -> str:  # type: ignore[override]  # read only here
        return self._stream.encoding

    @property
    def buffer(self) -> object:
        """Bytes written here have no label."""
        return self._stream.buffer


def install() -> None:
    """Make `sys.stdout` and `sys.stderr` add labels from now on. Once per process; further calls have no effect."""
    if not isinstance(sys.stdout, _Labelled):
        sys.stdout = _Labelled(sys.stdout)
    if not isinstance(sys.stderr, _Labelled):
        sys.stderr = _Labelled(sys.stderr)


def current() -> str:
    """The label of the current group; empty outside of one."""
    label = _label.get()
    return "" if label is None else f"{label.name} {label.source}".strip()


class labelled:
    """Lines that are written inside it begin with `name` and `source`, which is converted to text only if needed.

    It is a class because each of a million small groups has one, and a generator takes four times as long.
    """

    __slots__ = ("_label", "_token")

    def __init__(self, source: object, name: str = "") -> None:
        self._label = _Label(source, name)

    def __enter__(self) -> None:
        self._token = _label.set(self._label)

    def __exit__(self, *_: object) -> None:
        for stream in list(self._label.begun):
            stream.write("\n")
        _label.reset(self._token)
