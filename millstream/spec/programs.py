"""The programs of users: UDFs, source transformers, and user-defined sources and sinks.

Owns how a program is specified (command, Python function, built-in, container, SQL, address) and what happens to a
record, or to a window of a reduce, on which it fails.
"""

import json
import re
import time
from collections.abc import Iterator, Mapping
from typing import Annotated, Any, ClassVar, Literal

from millstream import codes
from millstream.json_parser import parse_json
from millstream.limits import (
    ANSWER_RECORDS_MAX_MAX,
    FUNCTION_CONFIG_BYTES_MAX,
    KIB,
    MIB,
    STATE_BYTES_MAX,
    STATE_KEY_BYTES_MAX,
    TABLE_BYTES_MAX,
)
from millstream.retry import ASKED_MAX
from millstream.spec.addresses import without_secrets
from millstream.spec.model import Needed
from millstream.spec.protocols import NATIVE, PROTOCOLS, FunctionKind, ProtocolName
from millstream.spec.references import Secret, TextOrReference
from millstream.spec.tls import ProgramTls, stays_on_this_machine
from millstream.spec.values import (
    After,
    Chosen,
    Count,
    Flag,
    Name,
    NotEmpty,
    PositiveCount,
    PositiveDuration,
    Quantity,
    Schema,
    ShapeProblem,
    Share,
    SpecModel,
    Strict,
    Text,
    exactly_one,
    field,
    problem,
    text_check,
    without_effect,
)
from millstream.spec.windows import GroupBy

OnFailure = Literal["retry", "drop", "deadLetter", "stop"]
"""What happens to a record (for a reduce: a window) on which a program still fails after the last attempt."""

TIME_FORMATS = ("rfc3339", "epoch", "epoch_ms", "epoch_us", "epoch_ns")
"""The named formats of event times. Any other format is a strptime pattern."""


def _is_time_format(written: str) -> bool:
    """Whether a text is a named format, or a pattern that has directives, and only known ones."""
    if "%" not in written:
        return written in TIME_FORMATS
    try:
        time.strptime("", written)
    except ValueError as problem:
        # An empty text never matches; an invalid pattern is refused before that.
        return "bad directive" not in str(problem) and "stray %" not in str(problem)
    return True


def _names_function(written: str) -> bool:
    module, separator, function = written.rpartition(":")
    place_is_sound = module.endswith(".py") or all(part.isidentifier() for part in module.split("."))
    return bool(separator) and function.isidentifier() and place_is_sound


def _checked_scalar(written: Any) -> Any:
    if not isinstance(written, str | int | float | bool | None):
        raise problem(codes.WRONG_TYPE, "a list or mapping cannot be compared", "a text, number, true or false")
    return written


def _checked_config(written: Mapping[str, Any]) -> Mapping[str, Any]:
    size = len(config_text(written).encode())
    if size > FUNCTION_CONFIG_BYTES_MAX:
        what = f"it has {size:,} bytes as JSON; at most {FUNCTION_CONFIG_BYTES_MAX // KIB}Ki reach a function"
        raise problem(codes.OUT_OF_RANGE, what, "less, and a file for the rest, which the function reads")
    return written


def config_text(config: Mapping[str, Any]) -> str:
    """The JSON text of a configuration, as a function gets it. Raises `ValueError` for a number that JSON does not
    have."""
    try:
        return json.dumps(config, ensure_ascii=False, separators=(",", ":"), allow_nan=False)
    except ValueError as error:
        what = "it has a number that JSON does not have"
        raise problem(codes.VALUE_MALFORMED, what, "neither .inf nor .nan") from error


_SETTING_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,62}")
TableName = Annotated[
    str,
    text_check(
        _SETTING_NAME.fullmatch,
        "is not a name for a table",
        "at most 63 letters, digits and `_`, not beginning with a digit",
    ),
]
FunctionConfig = Annotated[
    Mapping[str, Any],
    After(_checked_config),
    Schema({"type": "object", "additionalProperties": True, "examples": [{"threshold": 3.5, "regions": ["eu"]}]}),
]
SecretName = Annotated[
    str,
    text_check(
        _SETTING_NAME.fullmatch,
        "is not a name for a secret",
        "at most 63 letters, digits and '_', such as `api_key`",
    ),
]
OutputsMax = Annotated[int, Strict(ge=1, le=ANSWER_RECORDS_MAX_MAX)]
TimeFormat = Annotated[
    str,
    text_check(
        _is_time_format,
        "is not an event time format",
        f"one of {', '.join(TIME_FORMATS)}, or a strptime pattern such as '%Y-%m-%d %H:%M:%S'",
    ),
]
PythonFunction = Annotated[
    str,
    text_check(
        _names_function,
        "does not name a Python function",
        "'package.module:function' or 'path/to/file.py:function'",
    ),
]
_Character = Annotated[
    str, text_check(lambda written: len(written) == 1, "is not a single character", 'a character such as ";"')
]


class EnvVar(SpecModel):
    """One environment variable of a program."""

    noun = "an environment variable"

    name: Text
    """Name of the variable."""
    value: TextOrReference = ""
    """Its value, as text or as `{env: NAME}` or `{file: PATH}`."""


class EventTime(SpecModel):
    """Where the event time of a record is found."""

    noun = "an event time"
    exactly_one_of = ("field", "header")

    field: Text | None = None
    """Dotted path of a member of the JSON value (`flight.scheduled`), or a CSV column."""
    header: Text | None = None
    """Name of a header of the record."""
    format: TimeFormat = "rfc3339"
    """`rfc3339`, `epoch` (seconds), `epoch_ms`, `epoch_us`, `epoch_ns`, or a strptime pattern. A time without an offset
    is UTC."""


class NoArguments(SpecModel):
    """The built-in has no arguments."""


class FilterArguments(SpecModel):
    """The condition of the built-in `filter`."""

    noun = "a filter"
    exactly_one_of = ("equals", "matches", "exists")

    field: Text
    """Dotted path of a member of the record's JSON value. A record without that member, or whose value is not JSON,
    does not satisfy `equals` or `matches`."""
    equals: Annotated[Any, After(_checked_scalar)] = None
    """Keeps the records whose member equals this text, number, true or false."""
    matches: Text | None = None
    """Keeps the records whose member is a text that contains a match of this regular expression."""
    exists: Flag | None = None
    """`true` keeps the records that have the member; `false` keeps the others."""

    def relation_problems(self) -> Iterator[ShapeProblem]:
        """The expression must compile."""
        try:
            re.compile(self.matches or "")
        except re.error as problem:
            what = f"{self.matches!r} is not a regular expression: {problem}"
            yield ShapeProblem(
                codes.VALUE_MALFORMED, ("matches",), what, "a regular expression in the syntax of Python's `re`"
            )


class CatBuiltin(SpecModel):
    """The built-in `cat`: passes every record on unchanged."""

    name: Literal["cat"]
    """`cat`."""
    kwargs: NoArguments = NoArguments()
    """None."""


class FilterBuiltin(SpecModel):
    """The built-in `filter`: keeps the records that satisfy a condition."""

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


MapBuiltin = Annotated[CatBuiltin | FilterBuiltin, Chosen("name")]
TransformBuiltin = Annotated[CatBuiltin | FilterBuiltin | EventTimeBuiltin, Chosen("name")]


class Container(SpecModel):
    """A program in a container image."""

    noun = "a container"

    image: Text
    """Reference of the image."""
    command: tuple[str, ...] = ()
    """Entry point. Default: that of the image."""
    args: tuple[str, ...] = ()
    """Arguments. Default: those of the image."""
    env: tuple[EnvVar, ...] = ()
    """Environment variables."""


class Backoff(SpecModel):
    """The pauses between attempts: interval x factor^n, at most cap, plus random jitter."""

    noun = "a backoff"

    interval_s: PositiveDuration = field(default=0.1, alias="interval")
    """Pause before the first retry. Duration, default 100ms."""
    steps: PositiveCount = 3
    """Total number of attempts, the first one included, before `onFailure` decides. Not used by `onFailure: retry`,
    which never stops retrying."""
    factor: Annotated[float, Strict(ge=1)] = 2.0
    """Factor by which each pause is longer than the one before."""
    cap_s: PositiveDuration = field(default=10.0, alias="cap")
    """Maximum pause. Duration, default 10s."""
    jitter: Share = 0.2
    """Maximum share of each pause that is added at random, so that lanes do not retry at the same time."""


class RetryStrategy(SpecModel):
    """What happens when a UDF or transformer fails on a record, or a reduce on a window."""

    noun = "a retry strategy"

    backoff: Backoff = Backoff()
    """Pauses and number of attempts."""
    max_retries: PositiveCount = ASKED_MAX
    """How often a function may ask for the same record again with `Retry` before `onFailure` decides. Not used by
    `onFailure: retry`, nor by a reduce."""
    on_failure: OnFailure | None = None
    """What happens after the last attempt: `retry` forever, `drop` (counted), `deadLetter` (to the vertex's dead-letter
    edges; for a window, a description of it) or `stop` the lane. Default: `deadLetter` if the vertex has a dead-letter
    edge, else `stop`."""


def _checked_address(written: str) -> str:
    match = _ADDRESS.fullmatch(written)
    if match is None or not 0 < int(match["port"] or 1) <= 65535:
        what = f"{without_secrets(written)!r} is not an address"
        raise problem(codes.VALUE_MALFORMED, what, "'host:port' or 'unix:/path'")
    return written


_ADDRESS = re.compile(r"unix:/\S+|(\[[0-9a-fA-F:.]+\]|[^\s:/\[\]]+):(?P<port>\d{1,5})")


class ProgramLimits(SpecModel):
    """Resource limits of a program's processes, enforced by the Linux kernel."""

    noun = "limits"

    memory: Quantity | None = None
    """Memory for data of each process (RLIMIT_DATA: heap, stacks and private mappings, whether touched or not, so more
    than `top` shows as resident). A request beyond the limit fails, in Python with MemoryError, and `retryStrategy`
    applies to the record. All processes together may use `processes` times as much. Size."""
    processes: PositiveCount | None = None
    """Total number of processes and threads of this program. Needs Linux 5.14, user namespaces, and a user other than
    root."""
    files: PositiveCount | None = None
    """Open files and sockets of each process."""
    cpu: PositiveCount | None = None
    """Number of processors that it may use."""

    @property
    def given(self) -> dict[str, int]:
        """The limits that are set, by name."""
        return {name: value for name in self.model_fields if (value := getattr(self, name)) is not None}


class Program(SpecModel):
    """A program of the user's, specified in exactly one way."""

    noun = "a user-defined program"
    kinds: ClassVar[tuple[str, ...]] = ("command", "python", "container", "address")
    function: ClassVar[FunctionKind] = FunctionKind.MAP
    """The purpose of the program."""

    command: Annotated[tuple[Text, ...], NotEmpty()] | None = None
    """Program and arguments, started once per replica, without a shell."""
    python: PythonFunction | None = None
    """A Python function: `package.module:function`, or `path/file.py:function` relative to the working directory. It
    runs in its own process."""
    container: Container | None = None
    """A container image. `millstream run` does not start containers: start it yourself and set `address`."""
    address: Annotated[str, After(_checked_address)] | None = None
    """Address of a running program, `host:port` or `unix:/path`, as seen from the vertex; with `groupBy`, as seen from
    the Spark tasks."""
    tls: ProgramTls | None = None
    """Encrypts the connection to an `address` of the form `host:port`. Default: no encryption."""
    protocol: ProtocolName = NATIVE
    """The protocol between the vertex and the program of a `command` or at an `address`: `millstream`
    (docs/udf-protocol.md), or the name of a protocol of an installed package (docs/extending.md)."""
    env: tuple[EnvVar, ...] = ()
    """Additional environment variables for `command` and `python`."""
    config: FunctionConfig | None = None
    """Settings of the function, which it reads with `udf.config`: any YAML, at most 64Ki as JSON."""
    secrets: dict[SecretName, Secret] = field(default_factory=dict)
    """Values that the function reads with `udf.secret("NAME")`, by name, each a reference: `{env: NAME}`,
    `{file: PATH}` or `{secret: {name: NAME, key: KEY}}`. In all at most 64Ki. Not for functions that Spark's tasks
    call."""
    working_dir: Text | None = None
    """Working directory of `command` and `python`, relative to the pipeline file. Default: the
    directory of the pipeline file."""
    start_timeout_s: Annotated[PositiveDuration, Strict(ge=1)] | None = field(default=None, alias="startTimeout")
    """How long it may take from its start until it answers, for example to load a model in `setup`; for an `address`,
    how long to wait for an answer. After three starts that take longer, the pipeline stops. Duration of at least 1s,
    default 60s."""
    timeout_s: Annotated[PositiveDuration, Strict(ge=1)] | None = field(default=None, alias="timeout")
    """How long a call may take; checked every second. A longer one ends the process, as a crash does: its records are
    tried again in halves, and `retryStrategy` decides about one that takes longer alone, three times in a row. Only for
    `command` and `python`. Duration of at least 1s. Default: no limit; a call without an answer is reported after
    10s."""
    limits: ProgramLimits | None = None
    """Resource limits of its processes. Default: those of the runner."""
    sandbox: Literal["strict"] | None = None
    """`strict`: the program sees programs and libraries, its working directory and the `readable` paths, all read-only;
    a scratch directory (`/tmp`, 256 MiB, in memory, deleted when the program ends); and its own socket. It has no
    network and no capabilities, and sees no other process. Needs Linux with user namespaces; without them the pipeline
    is refused. Default: all permissions of the runner's user."""
    network: Flag = False
    """In a sandbox: gives access to the network of this machine, including loopback. Needs Linux 6.12."""
    readable: tuple[Text, ...] = ()
    """In a sandbox: additional files and directories that the program may read, relative to the pipeline file."""

    @classmethod
    def shape_problems(cls, data: Mapping[str, Any]) -> Iterator[ShapeProblem]:
        """Requires one way to specify the program, and process settings only for a process that Millstream starts."""
        yield from exactly_one(data, cls.kinds, cls.noun)
        yield from _idle_process_settings(data)
        yield from _idle_tls(data)
        yield from _idle_settings(data)
        yield from _open_secrets(data)

    def relation_problems(self) -> Iterator[ShapeProblem]:
        """Each environment variable has one value."""
        yield from _repeated_names(self.env, ("env",))
        yield from self._protocol_problems()
        if self.container is not None:
            yield from _repeated_names(self.container.env, ("container", "env"))

    def _protocol_problems(self) -> Iterator[ShapeProblem]:
        """Requires a protocol with this type of function."""
        protocol, name = PROTOCOLS.load(self.protocol), self.protocol
        kind = self.function_kind
        if name != NATIVE and not (self.command or self.container or self.address):
            what = "`protocol` has no effect without `command` or `address`"
            yield ShapeProblem(codes.FIELDS_CONFLICT, ("protocol",), what, "`command` or `address`, or no `protocol`")
        elif kind not in protocol.serves:
            yield ShapeProblem(
                codes.NOT_ALLOWED, ("protocol",), f"the protocol `{name}` has no {kind.value} functions", "another one"
            )
        elif self.tls is not None and not protocol.encrypts:
            yield ShapeProblem(
                codes.FIELDS_CONFLICT, ("tls",), f"the protocol `{name}` does not support encryption", "no `tls`"
            )

    @property
    def function_kind(self) -> FunctionKind:
        """Checks the protocol for its purpose, and the settings beside it."""
        return self.function


_HELD = ("limits", "sandbox", "network", "readable")
"""Settings of a process with limits or a sandbox."""


def _idle_settings(data: Mapping[str, Any]) -> Iterator[ShapeProblem]:
    """`config` and `secrets` where no function gets them."""
    where = next((f"on `{name}`" for name in ("builtin", "sql") if data.get(name) is not None), None)
    if where is None and data.get("address") is not None and data.get("protocol", NATIVE) != NATIVE:
        where = "at an `address` with this `protocol`, which does not hand it over"
    if where is not None:
        given = {name: data[name] for name in ("config", "secrets") if data.get(name)}
        yield from without_effect(given, where, "no `{name}`, or a function that reads it")


def _open_secrets(data: Mapping[str, Any]) -> Iterator[ShapeProblem]:
    """Secrets that anyone between two machines could read."""
    address = data.get("address")
    if not data.get("secrets") or data.get("tls") is not None or not isinstance(address, str):
        return
    if not address.startswith("unix:") and not stays_on_this_machine(address.rpartition(":")[0].strip("[]")):
        what = "the secrets would be sent to another machine unencrypted"
        expected = "`tls` beside `address`, or the secrets where the function is started"
        yield ShapeProblem(codes.FIELDS_CONFLICT, ("secrets",), what, expected)


def _secrets_in_spark(data: Mapping[str, Any]) -> Iterator[ShapeProblem]:
    if data.get("secrets") and data.get("command") is None and data.get("sql") is None:
        why = "runs inside Spark's Python workers" if data.get("python") is not None else "is called by Spark's tasks"
        what = f"`secrets` is not possible here: the function {why}, and secrets are not sent to Spark"
        expected = "`command`, which starts the function beside the vertex"
        yield ShapeProblem(codes.FIELDS_CONFLICT, ("secrets",), what, expected)


def _idle_tls(data: Mapping[str, Any]) -> Iterator[ShapeProblem]:
    address = data.get("address")
    if data.get("tls") is not None and (address is None or str(address).startswith("unix:")):
        yield ShapeProblem(
            codes.FIELDS_CONFLICT,
            ("tls",),
            "`tls` is only for a connection to a `host:port`",
            "`address: host:port`, or no `tls`",
        )


def _idle_process_settings(data: Mapping[str, Any]) -> Iterator[ShapeProblem]:
    if data.get("command") is not None or data.get("python") is not None:
        if data.get("sandbox") is None:
            for name in ("network", "readable"):
                if data.get(name):
                    what = f"`{name}` has no effect without a sandbox"
                    yield ShapeProblem(codes.FIELDS_CONFLICT, (name,), what, f"`sandbox: strict`, or no `{name}`")
        return
    for name in ("env", "workingDir", "timeout", *_HELD):
        if data.get(name):
            what = f"`{name}` is only for `command` and `python` programs"
            yield ShapeProblem(
                codes.FIELDS_CONFLICT, (name,), what, "the corresponding setting in `container`, or none"
            )


def _repeated_names(env: tuple[EnvVar, ...], loc: tuple[str, ...]) -> Iterator[ShapeProblem]:
    seen: set[str] = set()
    for index, variable in enumerate(env):
        if variable.name in seen:
            what = f"`{variable.name}` is set twice"
            yield ShapeProblem(codes.NAME_TWICE, (*loc, index, "name"), what, "each variable only once")
        seen.add(variable.name)


class ValueFormat(SpecModel):
    """How the values of a window's records become columns for SQL."""

    noun = "a value format"

    format: Literal["json", "csv", "avro", "raw"] = "json"
    """`json` (an object per record), `csv` (a line per record), `avro` (binary, without the header of a file) or `raw`
    (the bytes)."""
    fields: Text | None = None
    """The members or columns to read, in the syntax of a Spark table schema: `delay DOUBLE, origin STRING`. For `csv`,
    all columns of a line, in order. A missing value, or one of another type, is NULL. Only for `json` and `csv`."""
    delimiter: _Character | None = None
    """Separator of `csv` columns, one character. Default: a comma."""
    avro_schema: Text | None = None
    """JSON schema of a record with which `avro` values were written. Its fields become the columns."""

    @classmethod
    def shape_problems(cls, data: Mapping[str, Any]) -> Iterator[ShapeProblem]:
        """Each format has the settings that it needs, and no others."""
        format_ = data.get("format", "json")
        settings = _VALUE_SETTINGS.get(format_) if isinstance(format_, str) else None
        if settings is None:
            return
        needed, allowed = settings
        for name in needed:
            if data.get(name) is None:
                yield ShapeProblem(
                    codes.FIELDS_CONFLICT, (), f"`{format_}` values need `{name}`", _VALUE_EXAMPLES[name]
                )
        used = (*needed, *allowed)
        unused = {name: data.get(name) for name in ("fields", "delimiter", "avroSchema") if name not in used}
        yield from without_effect(unused, f"on `{format_}` values", "no `{name}`")

    def relation_problems(self) -> Iterator[ShapeProblem]:
        """Requires a schema to be JSON."""
        try:
            parse_json(self.avro_schema or "{}")
        except ValueError as problem:
            yield ShapeProblem(
                codes.VALUE_MALFORMED,
                ("avroSchema",),
                f"the schema is not JSON: {problem}",
                _VALUE_EXAMPLES["avroSchema"],
            )


_VALUE_SETTINGS: Mapping[str, tuple[tuple[str, ...], tuple[str, ...]]] = {
    "json": (("fields",), ()),
    "csv": (("fields",), ("delimiter",)),
    "avro": (("avroSchema",), ()),
    "raw": ((), ()),
}
"""For each format, the settings that it needs and those that it may have."""
_VALUE_EXAMPLES = {
    "fields": "columns such as 'delay DOUBLE, origin STRING'",
    "avroSchema": """a record such as '{"type": "record", "name": "r", "fields": [...]}'""",
}


class Sql(SpecModel):
    """A query over the records of a window."""

    noun = "sql"

    query: Text
    """A query in Spark SQL over the table `window`, whose rows are the records of one window."""
    value: ValueFormat | None = None
    """How `value` is decoded. Default: `value` is the bytes."""
    unsafe: Flag = False
    """Allows the query to do everything that Spark can do with the permissions of the runner: call Java, and read files
    and other tables. Otherwise `validate` accepts only queries that compute over the records of their window."""


class State(SpecModel):
    """What a function may remember."""

    noun = "a state"

    scope: Literal["key", "lane"] = "key"
    """`key`: each key of its records has its own. `lane`: each partition has one, for all of its records."""
    store: Literal["memory", "disk"] = "memory"
    """Where a worker has it beside its ledger, which decides. `memory`: all of it, read from the ledger at the start.
    `disk`: in a file, for more than memory holds; after a restart the worker reads what the file does not have. Needs
    `millstream[disk]`."""
    max_bytes: Quantity = 256 * MIB
    """Bytes of what is remembered in each partition. A record that would exceed it fails; deleting is always possible.
    The broker keeps space for 2.2 times as much. Size of at most 4Gi, default 256Mi."""
    max_bytes_per_key: Quantity = MIB
    """Bytes of what is remembered for a key: a call gets all of it. Size of at most 4Mi, default 1Mi."""

    def needs(self) -> Iterator[Needed]:
        """The package of the store."""
        if self.store == "disk":
            yield Needed("lmdb", "millstream[disk]", ("store",))

    def relation_problems(self) -> Iterator[ShapeProblem]:
        """What is remembered for a key has to fit into a commit."""
        if self.max_bytes_per_key > STATE_KEY_BYTES_MAX:
            what = f"a call and a commit have to hold everything of a key, at most {STATE_KEY_BYTES_MAX // MIB}Mi"
            yield ShapeProblem(codes.NOT_ALLOWED, ("maxBytesPerKey",), what, "less, in several keys")
        if self.max_bytes > STATE_BYTES_MAX:
            what = f"parts of the state of a partition have to fit into a commit, at most {STATE_BYTES_MAX // MIB}Mi"
            yield ShapeProblem(codes.NOT_ALLOWED, ("maxBytes",), what, "less, and more `partitions`")


class Table(SpecModel):
    """A table that a function may read: the records of an edge, of which every partition has all."""

    noun = "a table"

    from_: Name | None = field(default=None, alias="from")
    """The vertex whose records the table has, by their keys; the latest one of a key counts, and one with an empty
    value removes the key. An edge has to lead from it. Default: the vertex with the name of the table."""
    max_bytes: Quantity = 64 * MIB
    """Bytes of the keys and values of the table. A lane whose table would have more stops the pipeline. The worker and
    the function have a copy for each partition, and the broker keeps space for 2.2 times as much. Size of at most 1Gi,
    default 64Mi."""
    wait_for: Literal["end"] | Count | None = None
    """How much of the table a lane reads before any record of other edges: `end`, all of it, which needs sources that
    end; or a number of records, 0 for none. Default: `end` if the sources of the table end, otherwise 1; 0 if one of
    them is also a source of the other records, which would wait for themselves."""

    def relation_problems(self) -> Iterator[ShapeProblem]:
        """Each call waits until the function has the table as it is then."""
        if self.max_bytes > TABLE_BYTES_MAX:
            what = f"a function gets the whole table when it is started, at most {TABLE_BYTES_MAX // MIB}Mi"
            yield ShapeProblem(codes.NOT_ALLOWED, ("maxBytes",), what, "less, or a store outside that functions ask")


class Udf(Program):
    """The program of a map vertex or, with `groupBy`, of a reduce vertex."""

    noun = "a udf"
    kinds: ClassVar[tuple[str, ...]] = ("command", "python", "builtin", "container", "address")
    reduce_kinds: ClassVar[tuple[str, ...]] = ("sql", "python", "command", "container", "address")
    function = FunctionKind.MAP

    builtin: MapBuiltin | None = None
    """A built-in: `cat` or `filter`. Not with `groupBy`."""
    group_by: GroupBy | None = None
    """Makes the vertex a reduce: how records are grouped into windows. With `groupBy`, `python` names a function or
    class that runs inside Spark's Python workers, once for each group."""
    sql: Sql | None = None
    """A query over each window; only with `groupBy`."""
    concurrency: PositiveCount | None = None
    """Number of records of one lane that the UDF processes concurrently; not with `groupBy`. Default:
    `limits.concurrency`. A function that cannot run concurrently (in Python, one that is neither async nor uses
    threads) does not start with more than 1."""
    outputs_max: OutputsMax | None = None
    """Maximum number of outputs of one call, 1 to 3,964,928. A call with more outputs fails. Default: 500,000. Only for
    functions with very many outputs per record; not with `groupBy`."""
    streaming: Flag = False
    """Whether the function sends outputs while it makes them, for one that yields many or large ones: its process holds
    only those that it has not sent, and the next function of a chain gets them before it is done. They still count all
    together with the last one, or not at all, within the limits of one call. Not with `state` or `groupBy`. Numaflow
    calls it map streaming."""
    state: State | None = None
    """What the function may remember from record to record, committed with its outputs; not with `groupBy`, whose
    windows remember records, and not with a built-in. `state: {}` for the default limits."""
    tables: dict[TableName, Table] | None = None
    """Tables that the function may read, by the names that it has for them: each partition of the vertex gets every
    record of their edges. Not with `groupBy`, and not with a built-in."""
    retry_strategy: RetryStrategy = RetryStrategy()
    """What happens when it fails on a record, or in a reduce on a window."""

    @property
    def function_kind(self) -> FunctionKind:
        """Checks the protocol for its purpose, and the settings beside it."""
        return FunctionKind.MAP if self.group_by is None else FunctionKind.REDUCE

    @property
    def kept_bytes_max(self) -> int:
        """Bytes that a lane may keep of what the function remembers, and of its tables."""
        tables = sum(table.max_bytes for table in (self.tables or {}).values())
        return tables + (self.state.max_bytes if self.state is not None else 0)

    def _protocol_problems(self) -> Iterator[ShapeProblem]:
        yield from super()._protocol_problems()
        if self.streaming and not PROTOCOLS.load(self.protocol).streams:
            what = f"the protocol `{self.protocol}` sends each answer as a whole"
            yield ShapeProblem(codes.FIELDS_CONFLICT, ("streaming",), what, "no `streaming`")

    @classmethod
    def shape_problems(cls, data: Mapping[str, Any]) -> Iterator[ShapeProblem]:
        """Requires a program for the vertex's input: records or windows."""
        is_reduce = data.get("groupBy") is not None
        if is_reduce and data.get("builtin") is not None:
            what = "a built-in processes records, not windows"
            expected = f"one of {', '.join(f'`{name}`' for name in cls.reduce_kinds)}"
            yield ShapeProblem(codes.NOT_ALLOWED, ("builtin",), what, expected)
        elif is_reduce:
            yield from exactly_one(data, cls.reduce_kinds, "a UDF with `groupBy`")
        elif data.get("sql") is not None:
            what = "`sql` computes windows, and the vertex has no windows"
            yield ShapeProblem(codes.FIELDS_CONFLICT, ("sql",), what, "`groupBy`, or another program")
        else:
            yield from exactly_one(data, cls.kinds, cls.noun)
            if data.get("builtin") is not None:
                unused = {
                    "state": data.get("state"),
                    "tables": data.get("tables"),
                    "streaming": data.get("streaming") or None,
                }
                yield from without_effect(unused, "on a built-in", "no `{name}`, or a function")
            elif data.get("streaming") and data.get("state") is not None:
                what = "what the function remembers counts with all of its outputs, so they are sent together"
                expected = "no `streaming`, or what yields outputs in a vertex of its own"
                yield ShapeProblem(codes.FIELDS_CONFLICT, ("streaming",), what, expected)
            elif data.get("streaming") and data.get("tables") is not None:
                what = "a function that reads tables sends the outputs of a call together"
                expected = "no `streaming`, or what yields outputs in a vertex of its own"
                yield ShapeProblem(codes.FIELDS_CONFLICT, ("streaming",), what, expected)
        if is_reduce:
            yield from _idle_in_reduce(data)
            yield from _secrets_in_spark(data)
        yield from _idle_process_settings(data)
        yield from _idle_settings(data)
        if not is_reduce:
            yield from _idle_tls(data)
            yield from _open_secrets(data)


_IDLE_IN_REDUCE = {
    "concurrency": (
        "`concurrency` has no effect in a reduce: Spark computes as many windows at once as it has tasks",
        "no `concurrency`",
    ),
    "outputsMax": (
        "`outputsMax` has no effect in a reduce: the number of its results is not limited",
        "no `outputsMax`",
    ),
    "state": (
        "`state` has no effect in a reduce: its windows remember records",
        "no `state`, or no `groupBy`",
    ),
    "tables": (
        "`tables` has no effect in a reduce: Spark's tasks compute its windows, and have no lanes",
        "a map with `tables` before the reduce, which adds to each record what the windows need",
    ),
    "streaming": (
        "`streaming` has no effect in a reduce: its results are always sent as they are made",
        "no `streaming`",
    ),
    "timeout": ("`timeout` has no effect in a reduce: Spark's tasks call the function", "no `timeout`"),
    "tls": (
        "Spark's tasks call the function of a reduce, and they do not encrypt the connection",
        "no `tls`, and a function on the same machine",
    ),
}
"""Settings without effect in a reduce, each with the reason and what to do."""
_IDLE_INSIDE_SPARK = {
    "env": "`spark.executorEnv.NAME` in `spec.spark.conf`",
    **dict.fromkeys(("startTimeout", *_HELD), "`command`, which starts the function in its own process"),
}
"""Settings without effect on a function that Spark's own workers run, each with what to do."""


def _idle_in_reduce(data: Mapping[str, Any]) -> Iterator[ShapeProblem]:
    for name, (what, expected) in _IDLE_IN_REDUCE.items():
        if data.get(name) not in (None, False):
            yield ShapeProblem(codes.FIELDS_CONFLICT, (name,), what, expected)
    if data.get("python") is not None:
        for name, expected in _IDLE_INSIDE_SPARK.items():
            if data.get(name):
                what = f"`{name}` has no effect: the function runs inside Spark's Python workers"
                yield ShapeProblem(codes.FIELDS_CONFLICT, (name,), what, expected)


class Transformer(Program):
    """A program that sets the keys, event time or headers of a source's records, or drops them, before the watermark is
    computed."""

    noun = "a transformer"
    kinds: ClassVar[tuple[str, ...]] = ("command", "python", "builtin", "container", "address")
    function = FunctionKind.SOURCE_TRANSFORM

    builtin: TransformBuiltin | None = None
    """A built-in: `eventTime`, `filter` or `cat`."""
    outputs_max: OutputsMax | None = None
    """Maximum number of outputs of one call, 1 to 3,964,928. A call with more outputs fails. Default: 500,000."""
    retry_strategy: RetryStrategy = RetryStrategy()
    """What happens when it fails on a record."""
