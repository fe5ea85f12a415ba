"""Says of every line that a function prints which group it was printed for.

Above it: `reducing`. Below it: `sys.stdout` and `sys.stderr`. In a Spark worker, and among many groups, a line without
its window and key would be of no help. A label belongs to a context (`contextvars`), so groups that are worked on at
the same time have their own.
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
        """Beginning of a line that has not ended, by stream."""


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
        """Bytes that are written here have no label."""
        return self._stream.buffer


def install() -> None:
    """From here on `sys.stdout` and `sys.stderr` know labels. Once a process; again it changes nothing."""
    if not isinstance(sys.stdout, _Labelled):
        sys.stdout = _Labelled(sys.stdout)
    if not isinstance(sys.stderr, _Labelled):
        sys.stderr = _Labelled(sys.stderr)


def current() -> str:
    """What the group that is worked on now is called; empty outside of one."""
    label = _label.get()
    return "" if label is None else f"{label.name} {label.source}".strip()


class labelled:
    """Lines that are written meanwhile begin with `name` and `source`, which is made into text for them only.

    A class: each of a million small groups has one, and a generator takes four times as long.
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
