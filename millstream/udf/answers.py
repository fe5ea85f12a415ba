"""What functions answer, in values of ours: what crosses the boundary to a function, whatever its protocol.

Above it: the lanes. Below it: nothing. Columns have the encoding of frames (`millstream_udf.columns`), so that an
answer that is passed on is never taken apart. Whether an answer fits its call, `checks.py` says.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum

from millstream.frame import Frame
from millstream.spec.protocols import FunctionKind


class Result(Enum):
    """What became of an input that was not simply processed."""

    ERROR = "error"
    """The function failed; the retry policy decides."""
    RETRY = "retry"
    """It asks to see the input again, after `delay_us`, without counting an attempt."""
    DEAD_LETTER = "dead letter"
    """No further attempt: to the dead-letter edge."""
    DROP = "drop"
    """Leave it out, counted under `reason`."""
    FALLBACK = "fallback"
    """Of a sink: to the fallback sink."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """Of one input."""

    index: int
    """Of the input in the call."""
    result: Result
    reason: str = ""
    """One line, or all there is to say."""
    detail: str = ""
    """A stack trace."""
    delay_us: int = 0
    """With RETRY."""
    code: int = 0
    """Of the catalogue of errors, where the function names one; 0 where it does not."""


@dataclass(frozen=True, slots=True)
class MapAnswer:
    """Outputs as columns, in the order in which they are forwarded. An empty column: see each."""

    records: int = 0
    """Outputs."""
    values: bytes = b""
    parents: bytes = b""
    """Index of the input of each output, never falling. Empty: output i is of input i, and there are as many."""
    keys: bytes = b""
    """Empty: those of the parents."""
    tags: bytes = b""
    """Empty: none."""
    headers: bytes = b""
    """Empty: those of the parents."""
    event_times_us: bytes = b""
    """Of a source transform. Empty: those of the parents."""
    outcomes: Sequence[Outcome] = ()
    """Of the inputs that were not simply processed; they have no outputs."""
    error: str = ""
    """The call as a whole has failed: why."""


@dataclass(frozen=True, slots=True)
class SinkAnswer:
    """What was not written; the rest was."""

    outcomes: Sequence[Outcome] = ()
    error: str = ""
    """The call as a whole has failed: why."""


@dataclass(frozen=True, slots=True)
class ReadBatch:
    """What a user-defined source gave for one read."""

    frame: Frame | None = None
    """None: nothing was ready. An `ingest_time_us` of 0: not said."""
    position: bytes = b""
    """The position of the source after it."""
    ended: bool = False
    """Nothing will follow."""
    error: str = ""
    """The read failed; it may be tried again."""
    pending: int | None = None
    """Records that wait behind it; None: not known."""


@dataclass(frozen=True, slots=True)
class Description:
    """What a function says of itself."""

    kinds: frozenset[FunctionKind] = frozenset()
    """That it serves."""
    language: str = ""
    sdk_version: str = ""
    concurrency: int = 0
    """Records of one stream that it works on at a time; 0: it does not say."""
    keeps_positions: bool = False
    """It is a sink whose target stores how far a lane is."""
