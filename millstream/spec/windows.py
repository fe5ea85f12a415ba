"""How a reduce vertex groups its records: windows, lateness, early results, storage.

Owns `groupBy` and everything below it, under Numaflow's names where Numaflow has the concept. It does not know how
windows are stored or computed.
"""

import math
from collections.abc import Iterator
from typing import Annotated, Literal

from millstream import codes
from millstream.clock import MICROSECONDS
from millstream.limits import LOG_SEGMENT_BYTES, MIB, PANES_PER_WINDOW_MAX, WINDOWS_PER_RECORD_MAX
from millstream.plurals import counted
from millstream.spec.values import (
    Duration,
    Flag,
    PositiveCount,
    PositiveDuration,
    Quantity,
    ShapeProblem,
    SpecModel,
    Text,
    as_duration,
    field,
    range_check,
)

SPAN_MIN_S = 0.001
"""Minimum length, slide or timeout."""

EARLY_EVERY_S = 10.0
"""Period of early results if `streaming` is set and `early` does not give one."""

VOLUME_SIZE = 20 << 30
"""Default of `volumeSize`, as in Numaflow."""

LOG_BYTES_MIN = 4 * LOG_SEGMENT_BYTES
"""A log is removed in whole segments: with fewer segments, one open window could fill it."""

OnLate = Literal["drop", "edge"]
"""What happens to a record that arrives after all its windows have closed."""
AccessMode = Literal["ReadWriteOnce", "ReadWriteOncePod", "ReadWriteMany"]
WindowKind = Literal["fixed", "sliding", "session", "global"]


Span = Annotated[
    Duration, range_check(lambda seconds: seconds >= SPAN_MIN_S, "the duration is too short", 'at least "1ms"')
]
"""Seconds of event time, at least a millisecond."""


class FixedWindow(SpecModel):
    """Adjacent windows of the same length: [0, length), [length, 2 x length), ... since the epoch, UTC."""

    noun = "a fixed window"

    length_s: Span = field(alias="length")
    """Length of a window. Duration of event time."""
    streaming: Flag = False
    """Emits early results before the window closes, as set in `early`."""


class SlidingWindow(SpecModel):
    """Windows of the same length that start at every multiple of `slide`. A record belongs to every window that covers
    its event time."""

    noun = "a sliding window"

    length_s: Span = field(alias="length")
    """Length of a window. Duration of event time."""
    slide_s: Span = field(alias="slide")
    """Time from the start of one window to the start of the next. Duration of event time. A slide longer than `length`
    leaves gaps; records in a gap belong to no window."""
    streaming: Flag = False
    """Emits early results before the window closes, as set in `early`."""

    def relation_problems(self) -> Iterator[ShapeProblem]:
        """The number of windows of a record is bounded, and so is the number of panes of a window."""
        length_us, slide_us = round(self.length_s * MICROSECONDS), round(self.slide_s * MICROSECONDS)
        windows = math.ceil(length_us / slide_us)
        panes = length_us // math.gcd(length_us, slide_us)
        if windows > WINDOWS_PER_RECORD_MAX:
            what = f"each record would be in {windows:,} windows"
            yield ShapeProblem(
                codes.OUT_OF_RANGE, ("slide",), what, f"a slide for which it is at most {WINDOWS_PER_RECORD_MAX:,}"
            )
        elif panes > PANES_PER_WINDOW_MAX:
            yield ShapeProblem(
                codes.OUT_OF_RANGE,
                ("slide",),
                f"a window would consist of {panes:,} parts, because the common divisor of `length` and `slide` is "
                "so short",
                "a slide that divides the length, or has a long common divisor with it",
            )


class SessionWindow(SpecModel):
    """A window per key for each burst of records. It ends when no record has arrived for `timeout`."""

    noun = "a session window"

    timeout_s: Span = field(alias="timeout")
    """Gap that ends a session: the window lasts from the first record until `timeout` after the last one. Duration of
    event time."""
    streaming: Flag = False
    """Emits early results before the session ends, as set in `early`."""


class Trigger(SpecModel):
    """When a global window emits a result."""

    noun = "a trigger"
    exactly_one_of = ("count", "every")

    count: PositiveCount | None = None
    """After this many records."""
    every_s: Span | None = field(default=None, alias="every")
    """When event time passes a multiple of this duration. Duration."""

    def __str__(self) -> str:
        return f"every {self.count}" if self.every_s is None else f"every {as_duration(self.every_s)}"


class GlobalWindow(SpecModel):
    """One window over all of event time. It emits a result when its trigger fires, and one at the end."""

    noun = "a global window"

    trigger: Trigger | None = None
    """When results are emitted before the end, which is when every source has ended. Default: never."""
    accumulate: Flag = False
    """`true`: each result covers all records so far, and every record is kept forever. `false`: each result covers the
    records since the previous one."""


class Window(SpecModel):
    """Which records belong together: exactly one kind."""

    noun = "a window"
    exactly_one_of = ("fixed", "sliding", "session", "global")

    fixed: FixedWindow | None = None
    """Adjacent windows of the same length."""
    sliding: SlidingWindow | None = None
    """Overlapping windows of the same length."""
    session: SessionWindow | None = None
    """Bursts of records."""
    global_: GlobalWindow | None = field(default=None, alias="global")
    """All of event time in one window."""

    @property
    def counts(self) -> bool:
        """Whether results are triggered by the number of records."""
        return self.global_ is not None and self.global_.trigger is not None and self.global_.trigger.count is not None

    @property
    def kind(self) -> WindowKind:
        """The kind of the window."""
        if self.fixed is not None:
            return "fixed"
        if self.sliding is not None:
            return "sliding"
        return "session" if self.session is not None else "global"

    def __str__(self) -> str:
        """A short form: `fixed 1h`."""
        words: list[str] = [self.kind]
        if self.fixed is not None:
            words.append(as_duration(self.fixed.length_s))
        elif self.sliding is not None:
            words.append(f"{as_duration(self.sliding.length_s)} every {as_duration(self.sliding.slide_s)}")
        elif self.session is not None:
            words.append(as_duration(self.session.timeout_s))
        elif self.global_ is not None and self.global_.trigger is not None:
            words.append(str(self.global_.trigger))
        return " ".join(words)

    @property
    def streaming(self) -> bool:
        """Whether early results are emitted."""
        chosen = self.fixed or self.sliding or self.session
        return chosen is not None and chosen.streaming


class Early(SpecModel):
    """When a window with `streaming` emits early results. Only windows with new records emit one."""

    noun = "early"
    exactly_one_of = ("every", "count")

    every_s: PositiveDuration | None = field(default=None, alias="every")
    """Period in processing time. Duration."""
    count: PositiveCount | None = None
    """Emits a result of each window that has received at least this many records since its previous one. Records that
    are read together are counted together."""


class PersistentVolumeClaim(SpecModel):
    """A volume that survives the pod. On this machine: the data directory."""

    noun = "persistentVolumeClaim"

    volume_size: Quantity = VOLUME_SIZE
    """Size of the volume. The log of each lane stays below its share of it. Default 20Gi."""
    access_mode: AccessMode = "ReadWriteOnce"
    """Kubernetes access mode."""
    storage_class_name: Text | None = None
    """Kubernetes storage class. Default: the cluster's."""


class EmptyDir(SpecModel):
    """A directory that exists as long as the pod. On this machine: the data directory."""

    noun = "emptyDir"

    size_limit: Quantity | None = None
    """Maximum size in bytes. The log of each lane stays below its share of it. Default: the space on the disk."""


class NoStore(SpecModel):
    """No durable storage: the log may be lost with the machine of the process at any time."""

    noun = "no_store"


class Storage(SpecModel):
    """Where the log of the windows' records is stored: exactly one kind."""

    noun = "storage"
    exactly_one_of = ("persistentVolumeClaim", "emptyDir", "no_store")

    persistent_volume_claim: PersistentVolumeClaim | None = None
    """Survives the process, the pod and the node."""
    empty_dir: EmptyDir | None = None
    """Survives the process."""
    no_store: NoStore | None = field(default=None, alias="no_store")
    """Survives nothing. The input stays in the ledger instead, as with `keepInput`."""


class GroupBy(SpecModel):
    """Makes a UDF a reduce: its records are grouped into windows of event time."""

    noun = "groupBy"

    window: Window
    """Which records belong together, such as `{fixed: {length: 1m}}`."""
    keyed: Flag = False
    """`true`: one group per window and key. `false`: one group per window; the vertex then has one partition."""
    allowed_lateness_s: Duration = field(default=0.0, alias="allowedLateness")
    """How long after its end, in event time, a window still accepts records. Results are delayed by the same time.
    Duration, default 0s."""
    on_late: OnLate = "drop"
    """What happens to records that arrive after all their windows have closed: `drop` (counted), or `edge` (to the
    edges of kind `late`)."""
    early: Early | None = None
    """When early results are emitted. Needs `streaming: true` in the window. Default: every 10s."""
    storage: Storage | None = None
    """Where the log of the windows' records is stored. Default: `emptyDir`."""
    keep_input: Flag | None = None
    """Keeps the input in the ledger until its windows are committed, so that no record is lost if the log's disk is
    lost. Not for windows with a count trigger. Default: true with `no_store`, else false."""

    def relation_problems(self) -> Iterator[ShapeProblem]:
        """Checks early results, which are configured in two places, and that without a log the input is kept and
        sufficient."""
        if self.early is not None and not self.window.streaming:
            what = "`early` has no effect without `streaming: true`"
            expected = "no `early`: its trigger applies" if self.window.global_ else "`streaming: true` in the window"
            yield ShapeProblem(codes.FIELDS_CONFLICT, ("early",), what, expected)
        if self.keep_input is False and self._stores_nothing:
            what = "without storage, the windows exist only in the input"
            yield ShapeProblem(codes.FIELDS_CONFLICT, ("keepInput",), what, "`keepInput: true`, or another storage")
        elif self.keeps_input and self.window.counts:
            what = "a window with a count trigger cannot be rebuilt from its input, because its records depend on "
            what += "earlier ones, which are gone"
            yield ShapeProblem(
                codes.FIELDS_CONFLICT,
                ("keepInput",) if self.keep_input else ("storage", "no_store"),
                what,
                "`emptyDir` or `persistentVolumeClaim` without `keepInput`, or a trigger with `every`",
            )

    @property
    def _stores_nothing(self) -> bool:
        return self.storage is not None and self.storage.no_store is not None

    @property
    def keeps_input(self) -> bool:
        """Whether the input stays in the ledger until its windows are committed."""
        return self._stores_nothing if self.keep_input is None else self.keep_input

    @property
    def early_results(self) -> Early | None:
        """When early results are emitted; None if there are none."""
        if not self.window.streaming:
            return None
        return self.early or Early.model_validate({"every": EARLY_EVERY_S})

    def log_bytes_max(self, partitions: int, replicas: int) -> int | None:
        """Maximum size in bytes of the log of one lane: its share of the storage of its replica. None if no size is
        set."""
        claim = self.storage.persistent_volume_claim if self.storage is not None else None
        directory = self.storage.empty_dir if self.storage is not None else None
        total = claim.volume_size if claim is not None else directory.size_limit if directory is not None else None
        return None if total is None else total // _lanes_of_a_replica(partitions, replicas)

    def sharing_problems(self, partitions: int, replicas: int) -> Iterator[ShapeProblem]:
        """Problems of a vertex with this number of partitions and replicas: a window without keys is in one place; a
        log needs space for a few segments."""
        if not self.keyed and partitions > 1:
            yield ShapeProblem(
                codes.FIELDS_CONFLICT,
                ("partitions",),
                "a reduce that is not keyed has one partition, because all records of a window are processed in "
                "one place",
                "`partitions: 1`, or `keyed: true` in `groupBy`",
            )
        share = self.log_bytes_max(partitions, replicas)
        if share is not None and share < LOG_BYTES_MIN:
            lanes = _lanes_of_a_replica(partitions, replicas)
            claimed = self.storage is not None and self.storage.persistent_volume_claim is not None
            field = ("persistentVolumeClaim", "volumeSize") if claimed else ("emptyDir", "sizeLimit")
            yield ShapeProblem(
                codes.OUT_OF_RANGE,
                ("udf", "groupBy", "storage", *field),
                f"the storage is too small for the logs of {counted(lanes, 'lane')}",
                f"at least {lanes * LOG_BYTES_MIN // MIB}Mi",
            )


def _lanes_of_a_replica(partitions: int, replicas: int) -> int:
    return -(-partitions // replicas)
