"""The answers of functions in our own types, for every protocol.

Above it: the lanes. Below it: nothing. Columns are encoded as in frames (`millstream_udf.columns`), so that passing an
answer on does not require decoding it. `checks.py` checks whether an answer fits its call.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import Enum

from millstream.frame import Frame
from millstream.udf.states import NO_CHANGES, StateChanges


class Result(Enum):
    """What happened to an input that was not processed normally."""

    ERROR = "error"
    """The function failed; the retry policy decides."""
    RETRY = "retry"
    """The function asks to see the input again after `delay_us`. This does not count as an attempt."""
    DEAD_LETTER = "dead letter"
    """There is no further attempt: the input goes to the dead-letter edge."""
    DROP = "drop"
    """The input is dropped, and counted under `reason`."""
    FALLBACK = "fallback"
    """For a sink: the input goes to the fallback sink."""
    HELD_UP = "held up"
    """For a function with states: another input of the same key has to be processed first, so this one was not
    processed. This does not count as an attempt."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """The outcome of one input."""

    index: int
    """Index of the input in the call."""
    result: Result
    reason: str = ""
    """The reason, on one line or with all details."""
    detail: str = ""
    """A stack trace."""
    delay_us: int = 0
    """The delay for RETRY."""
    code: int = 0
    """The code in the catalogue of errors, if the function gives one; otherwise 0."""
    attempts: int = 1
    """How many attempts an ERROR stands for."""


@dataclass(frozen=True, slots=True)
class MapAnswer:
    """Outputs as columns, in the order in which they are forwarded. Each column documents what an empty one means."""

    records: int = 0
    """Number of outputs."""
    values: bytes = b""
    arrow: bytes = b""
    """In place of the values, if the outputs go to a function that takes Arrow: see `millstream_udf.arrow_values`."""
    parents: bytes = b""
    """For each output, the index of its input, in ascending order. Empty: there is one output for each input, in
    order."""
    keys: bytes = b""
    """Empty: the keys of the parents."""
    tags: bytes = b""
    """Empty: no tags."""
    headers: bytes = b""
    """Empty: the headers of the parents."""
    event_times_us: bytes = b""
    """Event times from a source transform. Empty: the event times of the parents."""
    outcomes: Sequence[Outcome] = ()
    """Outcomes of the inputs that were not processed normally; these have no outputs."""
    error: str = ""
    """Why the whole call has failed; empty if it has not."""
    is_final: bool = False
    """With an error: no other attempt at all of these inputs would succeed."""
    changes: StateChanges = NO_CHANGES
    """What has changed of the states of the function."""
    lacks_tables: bool = False
    """Nothing was done, because the function does not have the tables that the call needs."""
    unfinished: bool = False
    """More of the answer follows."""
    before: Sequence[MapAnswer] = ()
    """The parts of the answer that came before this one, its last. They have no outputs of the inputs in any
    `outcomes`, or these do not count."""

    @property
    def size(self) -> int:
        """Bytes of the columns of the outputs."""
        return len(self.values) + len(self.keys) + len(self.headers)

    @property
    def parts(self) -> Sequence[MapAnswer]:
        """All parts of the answer, in order."""
        return (*self.before, self)

    @property
    def all_outcomes(self) -> Iterator[Outcome]:
        """Those of all parts."""
        return (outcome for part in self.parts for outcome in part.outcomes)


@dataclass(frozen=True, slots=True)
class SinkAnswer:
    """The records that were not written; all others were."""

    outcomes: Sequence[Outcome] = ()
    error: str = ""
    """Why the whole call has failed; empty if it has not."""


@dataclass(frozen=True, slots=True)
class ReadBatch:
    """What a user-defined source returned for one read."""

    frame: Frame | None = None
    """None: no records were ready. An `ingest_time_us` of 0 means that the time is unknown."""
    position: bytes = b""
    """The position of the source after the batch."""
    ended: bool = False
    """Nothing will follow."""
    error: str = ""
    """Why the read failed, if it did; it may be repeated."""
    attempts: int = 1
    """How many attempts a read that failed stands for."""
    pending: int | None = None
    """Records that wait after the batch; None: unknown."""
