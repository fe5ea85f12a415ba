"""The source of a vertex. Its kinds are connectors; their common settings are here."""

from collections.abc import Iterator, Mapping
from contextlib import suppress
from typing import Any, Literal

from millstream import codes
from millstream.errors import UserError
from millstream.spec.connectors import SOURCES, Demand, Guarantee, IdBounds, SourceKind, format_problems
from millstream.spec.formats import Format
from millstream.spec.programs import EventTime, Program, Transformer
from millstream.spec.registry import Choice
from millstream.spec.values import Needed, ShapeProblem, SpecModel, Text

OnInvalid = Literal["deadLetter", "drop", "stop"]


class Source(Choice):
    """Where the records of a source vertex come from: exactly one kind, and which parts of them are extracted."""

    noun = "a source"
    registry = SOURCES

    format: Format | None = None
    """How values are encoded, for sources of messages such as `kafka`. They are decoded to JSON before `eventTime` and
    `keys` are read. Default: values are not decoded."""
    key_format: Format | None = None
    """How keys are encoded, for `kafka`. A key is decoded to JSON: a text to itself, everything else to its JSON text.
    Default: keys are not decoded."""
    event_time: EventTime | None = None
    """Where the event time is found. Default: the time that the source itself provides (the generator's time, the HTTP
    header), else the time of reading."""
    keys: tuple[Text, ...] = ()
    """Dotted paths of members of the JSON value that become the record's keys, in this order."""
    transformer: Transformer | None = None
    """A program that is called for each record, after `eventTime` and `keys`."""
    guarantee: Demand | None = None
    """The guarantee that is required: `exactlyOnce` or `atLeastOnce`. `validate` and `run` refuse the pipeline if the
    source guarantees less. Default: no requirement."""
    on_invalid: OnInvalid | None = None
    """What happens to a record whose text, event time or key cannot be read: `deadLetter` (to the vertex's dead-letter
    edges), `drop` (counted) or `stop`. Default: `deadLetter` if the vertex has a dead-letter edge, else `stop`."""

    def relation_problems(self) -> Iterator[ShapeProblem]:
        """Rejects an event time from headers if the source has none, and a guarantee that the source does not have."""
        if self.event_time is not None and self.event_time.header is not None and not self.connector.has_headers:
            what = f"records of a {self.kind} source have no headers"
            yield ShapeProblem(codes.FIELDS_CONFLICT, ("eventTime", "header"), what, "`eventTime.field`")
        yield from format_problems(SOURCES, self.kind, self.settings, self.formats())
        if self.key_format is not None and self.keys:
            what = "`keyFormat` has no effect, because `keys` takes the keys from the value"
            yield ShapeProblem(codes.FIELDS_CONFLICT, ("keyFormat",), what, "one of them")
        holding = "a source that guarantees it, such as `file`; or no `guarantee`"
        yield from self.promise().demand_problems(self.guarantee, ("guarantee",), holding)

    def needs(self) -> Iterator[Needed]:
        yield from self.connector.needs(self.key)

    def formats(self) -> Iterator[tuple[str, Format]]:
        """The encodings outside, by the names of their fields."""
        yield from ((name, one) for name, one in (("format", self.format), ("keyFormat", self.key_format)) if one)

    @property
    def connector(self) -> SourceKind[SpecModel]:
        """The connector of its kind."""
        return SOURCES.load(self.kind)

    @property
    def program(self) -> Program | None:
        """The user's program, if that is where the records come from."""
        return self.settings if isinstance(self.settings, Program) else None

    def promise(self) -> Guarantee:
        """How often a record takes effect, whatever fails."""
        return self.connector.guarantee(self.settings)

    @property
    def bounded(self) -> bool | None:
        """Whether it ends by itself; None if only the user's program knows."""
        return self.connector.bounded(self.settings)

    @property
    def id_bounds(self) -> IdBounds | None:
        """How long and how many ids of its records are remembered; None if they have none."""
        return self.connector.id_bounds(self.settings)

    @classmethod
    def takes_untrusted_times(cls, written: Mapping[str, Any]) -> bool:
        """Whether other systems set the event times, for a source as written, which may have other errors."""
        named = [name for name in written if cls.is_kind(name) and written[name] is not None]
        with suppress(UserError):
            return any(SOURCES.load(name).untrusted for name in named)
        return False
