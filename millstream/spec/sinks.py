"""The sink of a vertex. Its kinds are connectors; their common settings are here."""

from collections.abc import Iterator
from typing import Literal

from millstream import codes
from millstream.retry import ASKED_MAX
from millstream.spec.connectors import SINKS, Demand, Guarantee, GuaranteeId, SinkKind, SinkUse, format_problems
from millstream.spec.formats import SinkFormat
from millstream.spec.programs import Backoff, Program
from millstream.spec.registry import Choice
from millstream.spec.values import Flag, Needed, PositiveCount, ShapeProblem, SpecModel, conflicts

OnSinkFailure = Literal["retry", "fallback", "drop", "stop"]
"""What happens to a record that a sink still refuses after the last attempt."""


class SinkRetryStrategy(SpecModel):
    """What happens when a sink refuses a record."""

    noun = "a retry strategy"

    backoff: Backoff = Backoff()
    """Pauses and number of attempts."""
    max_retries: PositiveCount = ASKED_MAX
    """How often a `udsink` may ask for the same record again with `Retry` before `onFailure` decides. Not used by
    `onFailure: retry`."""
    on_failure: OnSinkFailure = "retry"
    """What happens after the last attempt: `retry` forever (the default), `fallback` (to the `fallback` sink), `drop`
    (counted) or `stop` the lane."""


class FallbackSink(Choice):
    """The kinds of sink: exactly one of them. Writes to a fallback are retried forever."""

    noun = "a sink"
    registry = SINKS

    envelope: Flag | None = None
    """Whether each record is written as an envelope: a JSON object with its id, event time, keys, headers and value,
    and for a dead letter the reason, the vertex and the position. It can hold any record. Default: true for records
    from a dead-letter edge. A `log` always writes it."""

    format: SinkFormat | None = None
    """How values are encoded, in a sink of messages such as `kafka`. They have to be JSON before. Default: values stay
    unchanged."""

    key_format: SinkFormat | None = None
    """How keys are encoded, in `kafka`. A key fits the schema as a text, or else as the JSON that it is. The default of
    `subject` is `<topic>-key`. Default: keys stay as they are."""

    def needs(self) -> Iterator[Needed]:
        yield from self.connector.needs(self.key)

    def formats(self) -> Iterator[tuple[str, SinkFormat]]:
        """The encodings outside, by the names of their fields."""
        yield from ((name, one) for name, one in (("format", self.format), ("keyFormat", self.key_format)) if one)

    @property
    def connector(self) -> SinkKind[SpecModel]:
        """The connector of its kind."""
        return SINKS.load(self.kind)

    @property
    def program(self) -> Program | None:
        """The user's program, if records are sent to one."""
        return self.settings if isinstance(self.settings, Program) else None

    def relation_problems(self) -> Iterator[ShapeProblem]:
        """Rejects a format that the sink does not support, or without a subject."""
        yield from format_problems(SINKS, self.kind, self.settings, self.formats())
        if self.format is None:
            return
        if self.connector.encoded and self.format.subject is None and self.connector.subject(self.settings) is None:
            what = f"a {self.kind} sink has no default subject"
            expected = "`subject`, the schema's subject in the registry"
            yield ShapeProblem(codes.FIELDS_CONFLICT, ("format", "subject"), what, expected)

    def promise(self, *, fallback: bool = False) -> Guarantee:
        """Its guarantee for records that are sent again."""
        return self.connector.guarantee(self.settings, fallback=fallback)


IN_CHAIN = (
    "at least once: at the end of a chain there is no buffer from which the same records could be sent again with "
    "the same ids. With a buffer before it: "
)
"""The guarantee of a sink that depends on the same records and ids."""


class Sink(FallbackSink):
    """Where the records of a sink vertex go."""

    guarantee: Demand | None = None
    """The guarantee that is required, also of the `fallback`: `exactlyOnce` or `atLeastOnce`. `validate` and `run`
    refuse the pipeline if the sink guarantees less. Default: no requirement."""
    fallback: FallbackSink | None = None
    """Where records go that the sink refused, with `onFailure: fallback` or at the request of a `udsink`."""
    retry_strategy: SinkRetryStrategy = SinkRetryStrategy()
    """What happens when the sink refuses a record."""

    def in_chain(self, promise: Guarantee) -> Guarantee:
        """Its guarantee at the end of a chain."""
        if promise.id is not GuaranteeId.IDEMPOTENT or self.connector.whole:
            return promise
        return Guarantee(GuaranteeId.AT_LEAST_ONCE, f"{IN_CHAIN}{promise.sentence}")

    def relation_problems(self) -> Iterator[ShapeProblem]:
        """A fallback that is named must exist, and one that exists must be reachable."""
        yield from super().relation_problems()
        asked = self.retry_strategy.on_failure == "fallback"
        yield from conflicts(
            (
                asked and self.fallback is None,
                ("retryStrategy", "onFailure"),
                "there is no fallback sink",
                "a sink in `fallback`",
            ),
            (
                self.fallback is not None and not asked and not self.connector.asks_for_fallback,
                ("fallback",),
                "`fallback` has no effect",
                "`retryStrategy.onFailure: fallback`",
            ),
        )
        holding = "a sink that guarantees it, such as `file`; or no `guarantee`"
        yield from self.promise().demand_problems(self.guarantee, ("guarantee",), holding)
        if self.fallback is not None:
            aside = "a fallback that guarantees it; or no `guarantee`, which includes the fallback"
            yield from self.fallback.promise(fallback=True).demand_problems(self.guarantee, ("fallback",), aside)

    def use_problems(self, buffer_records: int, *, dead_letters: bool) -> Iterator[ShapeProblem]:
        """Problems of the sink and its fallback for this input buffer. `dead_letters`: whether an edge with dead
        letters leads here."""
        for place, one in (((), self), (("fallback",), self.fallback)):
            if one is not None:
                use = SinkUse(buffer_records, dead_letters if one.envelope is None else one.envelope)
                for problem in one.connector.use_problems(one.settings, use):
                    yield problem._replace(loc=(*place, one.kind, *problem.loc))
