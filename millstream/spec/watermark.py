"""How event time advances: the pipeline's `watermark`."""

from collections.abc import Iterator
from typing import Literal

from millstream import codes
from millstream.spec.values import Duration, Flag, PositiveDuration, ShapeProblem, SpecModel, field

OnFuture = Literal["deadLetter", "drop", "stop"]


class IdleSource(SpecModel):
    """Advances the watermark while a source has no data."""

    noun = "idleSource"

    threshold_s: PositiveDuration = field(alias="threshold")
    """Time without data after which a source is idle. Duration."""
    increment_by_s: PositiveDuration = field(alias="incrementBy")
    """How far each step advances the watermark. Duration, at most `threshold`."""
    step_interval_s: Duration = field(default=0.0, alias="stepInterval")
    """Time between steps. Duration. 0s: as often as watermarks are published."""
    init_source_delay_s: Duration | None = field(default=None, alias="initSourceDelay")
    """Time after the start after which a source that has never had data is idle. Duration, at least `threshold`.
    Default: such a source holds the watermark."""

    def relation_problems(self) -> Iterator[ShapeProblem]:
        """Rejects a step that is longer than the silence that it represents."""
        if self.increment_by_s > self.threshold_s:
            what = "`incrementBy` is longer than `threshold`"
            yield ShapeProblem(codes.OUT_OF_RANGE, ("incrementBy",), what, "at most `threshold`")
        delay_s = self.init_source_delay_s
        if delay_s is not None and delay_s < self.threshold_s:
            what = "`initSourceDelay` is shorter than `threshold`"
            yield ShapeProblem(codes.OUT_OF_RANGE, ("initSourceDelay",), what, "at least `threshold`")


class Watermark(SpecModel):
    """How event time advances."""

    noun = "watermark"

    disabled: Flag = False
    """Publishes no watermarks, so no record is ever late. Not with a reduce, whose windows would never close."""
    max_delay_s: Duration = field(default=0.0, alias="maxDelay")
    """How far the watermark of a source lane stays behind its newest event time. Records that are further out of order
    are late. Duration, default 0s."""
    max_future_s: PositiveDuration | None = field(default=None, alias="maxFuture")
    """How far ahead of the clock the event time of a source's record may be, after its transformer. `onFuture` applies
    to records beyond that. Duration. Default: no limit for generators and files, and 5m for every other source, because
    other systems set its times."""
    on_future: OnFuture | None = field(default=None, alias="onFuture")
    """What happens to a record whose event time is beyond `maxFuture`: `deadLetter`, `drop` (counted) or `stop`.
    Default: `deadLetter` if the source has a dead-letter edge, else `drop`."""
    idle_source: IdleSource | None = None
    """What happens while a source has no data. Default: the watermark waits."""
