"""What users run: UDFs, source transformers and user-defined sources and sinks.

Owns how a program is named (command, Python function, built-in, container) and what happens to a
record that it fails on.
"""

import re
from collections.abc import Iterator, Mapping
from typing import Annotated, Any, ClassVar, Literal

from pydantic import AfterValidator, Field

from millstream.spec.values import (
    Flag,
    PositiveCount,
    PositiveDuration,
    ShapeFault,
    Share,
    SpecModel,
    Text,
    exactly_one,
    fault,
)

OnFailure = Literal["retry", "drop", "deadLetter", "stop"]
"""What becomes of a record that a UDF or transformer still fails on after its last attempt."""

TIME_FORMATS = ("rfc3339", "epoch", "epoch_ms", "epoch_us")
"""The named formats of event times; anything else is a strptime pattern."""


def _checked_time_format(written: str) -> str:
    if written not in TIME_FORMATS and "%" not in written:
        raise fault(
            f"{written!r} is not an event time format",
            f"one of {', '.join(TIME_FORMATS)}, or a strptime pattern such as '%Y-%m-%d %H:%M:%S'",
        )
    return written


def _checked_python(written: str) -> str:
    module, separator, function = written.rpartition(":")
    name_is_sound = function.isidentifier()
    place_is_sound = module.endswith(".py") or all(part.isidentifier() for part in module.split("."))
    if not (separator and name_is_sound and place_is_sound):
        raise fault(
            f"{written!r} does not name a Python function",
            "'package.module:function' or 'path/to/file.py:function'",
        )
    return written


def _checked_scalar(written: Any) -> Any:
    if not isinstance(written, str | int | float | bool | None):
        raise fault("a list or mapping cannot be compared", "a text, number, true or false")
    return written


TimeFormat = Annotated[str, AfterValidator(_checked_time_format)]
PythonFunction = Annotated[str, AfterValidator(_checked_python)]


class EnvVar(SpecModel):
    """One environment variable of a program."""

    noun = "an environment variable"

    name: Text
    """Name of the variable."""
    value: str = ""
    """Its value, as text."""


class EventTime(SpecModel):
    """Where a record's event time is found."""

    noun = "an event time"

    field: Text | None = None
    """Dotted path of a member of the JSON value (`flight.scheduled`), or a CSV column."""
    header: Text | None = None
    """Name of a header of the record."""
    format: TimeFormat = "rfc3339"
    """`rfc3339`, `epoch` (seconds), `epoch_ms`, `epoch_us`, or a strptime pattern; a time without
    an offset is UTC."""

    @classmethod
    def shape_faults(cls, data: Mapping[str, Any]) -> Iterator[ShapeFault]:
        """One place, not two."""
        yield from exactly_one(data, ("field", "header"), cls.noun)


class NoArguments(SpecModel):
    """The arguments of a built-in that takes none."""


class FilterArguments(SpecModel):
    """The condition of the built-in `filter`."""

    noun = "a filter"

    field: Text
    """Dotted path of a member of the record's JSON value. A record without that member, or whose
    value is not JSON, does not fulfil `equals` or `matches`."""
    equals: Annotated[Any, AfterValidator(_checked_scalar)] = None
    """Keep records whose member equals this text, number, true or false."""
    matches: Text | None = None
    """Keep records whose member, a text, contains a match of this regular expression."""
    exists: Flag | None = None
    """Keep records that have the member (true) or that do not (false)."""

    @classmethod
    def shape_faults(cls, data: Mapping[str, Any]) -> Iterator[ShapeFault]:
        """One condition per filter."""
        yield from exactly_one(data, ("equals", "matches", "exists"), cls.noun)

    def relation_faults(self) -> Iterator[ShapeFault]:
        """The expression must compile."""
        try:
            re.compile(self.matches or "")
        except re.error as problem:
            what = f"{self.matches!r} is not a regular expression: {problem}"
            yield ShapeFault(("matches",), what, "an expression as Python's `re` takes it")


class CatBuiltin(SpecModel):
    """The built-in `cat`: hands every record on as it is."""

    name: Literal["cat"]
    """`cat`."""
    kwargs: NoArguments = NoArguments()
    """None."""


class FilterBuiltin(SpecModel):
    """The built-in `filter`: keeps the records that fulfil a condition."""

    name: Literal["filter"]
    """`filter`."""
    kwargs: FilterArguments
    """The condition."""


class EventTimeBuiltin(SpecModel):
    """The built-in `eventTime`, for source transformers: sets the event time from the record."""

    name: Literal["eventTime"]
    """`eventTime`."""
    kwargs: EventTime
    """Where the time is found."""


MapBuiltin = Annotated[CatBuiltin | FilterBuiltin, Field(discriminator="name")]
TransformBuiltin = Annotated[CatBuiltin | FilterBuiltin | EventTimeBuiltin, Field(discriminator="name")]


class Container(SpecModel):
    """A program in a container image."""

    noun = "a container"

    image: Text
    """Image reference."""
    command: tuple[str, ...] = ()
    """Entry point; empty takes the image's."""
    args: tuple[str, ...] = ()
    """Arguments; empty takes the image's."""
    env: tuple[EnvVar, ...] = ()
    """Environment variables."""


class Backoff(SpecModel):
    """The pauses between attempts: interval x factor^n, at most cap, spread by jitter."""

    noun = "a backoff"

    interval_s: PositiveDuration = Field(default=0.1, alias="interval")
    """Pause before the first retry. Duration, default 100ms."""
    steps: PositiveCount = 3
    """Attempts in all, the first one included, before `onFailure` decides; not used by
    `onFailure: retry`, which goes on for ever."""
    factor: Annotated[float, Field(ge=1, strict=True)] = 2.0
    """What each pause is multiplied by to give the next."""
    cap_s: PositiveDuration = Field(default=10.0, alias="cap")
    """Longest pause. Duration, default 10s."""
    jitter: Share = 0.2
    """Up to this share of each pause is added by chance, so that lanes do not try in step."""


class RetryStrategy(SpecModel):
    """What happens when a UDF or transformer fails on a record."""

    noun = "a retry strategy"

    backoff: Backoff = Backoff()
    """Pauses and number of attempts."""
    on_failure: OnFailure | None = None
    """After the last attempt: `retry` for ever, `drop` (counted), `deadLetter` (to the vertex's
    dead-letter edges) or `stop` the lane. Default: `deadLetter` if the vertex has a dead-letter
    edge, else `stop`."""


class Program(SpecModel):
    """A program of the user's: exactly one of the ways to name it."""

    noun = "a user-defined program"
    kinds: ClassVar[tuple[str, ...]] = ("command", "python", "container")

    command: Annotated[tuple[Text, ...], Field(min_length=1)] | None = None
    """Program and arguments, started once per replica without a shell."""
    python: PythonFunction | None = None
    """A Python function: `package.module:function`, or `path/file.py:function` relative to the
    working directory. It runs in a process of its own."""
    container: Container | None = None
    """A container image. Images run on Kubernetes; `millstream run` does not start containers."""
    env: tuple[EnvVar, ...] = ()
    """Environment variables added for `command` and `python`."""
    working_dir: Text | None = None
    """Working directory of `command` and `python`, relative to the pipeline file. Default: the
    directory of the pipeline file."""

    @classmethod
    def shape_faults(cls, data: Mapping[str, Any]) -> Iterator[ShapeFault]:
        """One way to name the program; process settings only where we start the process."""
        yield from exactly_one(data, cls.kinds, cls.noun)
        if data.get("command") is not None or data.get("python") is not None:
            return
        for name in ("env", "workingDir"):
            if data.get(name):
                what = f"`{name}` belongs to `command` and `python` programs"
                yield ShapeFault((name,), what, "the setting in `container`, or none")

    def relation_faults(self) -> Iterator[ShapeFault]:
        """Environment variables have one value each."""
        yield from _repeated_names(self.env, ("env",))
        if self.container is not None:
            yield from _repeated_names(self.container.env, ("container", "env"))


def _repeated_names(env: tuple[EnvVar, ...], loc: tuple[str, ...]) -> Iterator[ShapeFault]:
    seen: set[str] = set()
    for index, variable in enumerate(env):
        if variable.name in seen:
            what = f"`{variable.name}` is set twice"
            yield ShapeFault((*loc, index, "name"), what, "each variable once")
        seen.add(variable.name)


class Udf(Program):
    """The program of a map vertex."""

    # A reduce vertex will be a udf with `groupBy`, as in Numaflow; see `numaflow._UNSUPPORTED`.

    noun = "a udf"
    kinds: ClassVar[tuple[str, ...]] = ("command", "python", "builtin", "container")

    builtin: MapBuiltin | None = None
    """A built-in: `cat` or `filter`."""
    concurrency: PositiveCount | None = None
    """Records of one lane that the UDF works on at once. Default: `limits.concurrency`."""
    retry_strategy: RetryStrategy = RetryStrategy()
    """What happens when it fails on a record."""


class Transformer(Program):
    """A program that sets keys, event time or headers of a source's records, or drops them, before
    the watermark is taken."""

    noun = "a transformer"
    kinds: ClassVar[tuple[str, ...]] = ("command", "python", "builtin", "container")

    builtin: TransformBuiltin | None = None
    """A built-in: `eventTime`, `filter` or `cat`."""
    retry_strategy: RetryStrategy = RetryStrategy()
    """What happens when it fails on a record."""
