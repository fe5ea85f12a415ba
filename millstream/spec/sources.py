"""Where records come from: the source of a vertex and its options."""

import base64
import binascii
import codecs
import ipaddress
from collections.abc import Iterator, Mapping
from datetime import datetime
from typing import Annotated, Any, ClassVar, Literal

from pydantic import AfterValidator, Field

from millstream.limits import (
    FRAME_RECORDS_MAX,
    HTTP_CLIENT_CONNECTIONS_MAX,
    HTTP_CONNECTIONS_MAX,
    IDS_MAX,
    RECORD_BYTES_MAX,
)
from millstream.spec.columns import Column, repeated_columns
from millstream.spec.programs import EventTime, Program, Transformer
from millstream.spec.references import Secret
from millstream.spec.values import (
    Count,
    Duration,
    Flag,
    PositiveCount,
    PositiveDuration,
    ShapeFault,
    Share,
    SpecModel,
    Text,
    at_most_one,
    exactly_one,
    fault,
)

FileFormat = Literal["lines", "jsonl", "csv"]
OnInvalid = Literal["deadLetter", "drop", "stop"]
Port = Annotated[int, Field(strict=True, ge=0, le=65535)]

HTTP_PORT = 8090


def _checked_base64(written: str) -> str:
    try:
        base64.b64decode(written, validate=True)
    except binascii.Error:
        raise fault("the text is not base64", "bytes in standard base64") from None
    return written


def _checked_start(written: str) -> str:
    try:
        datetime.fromisoformat(written)
    except ValueError:
        raise fault(f"{written!r} is not a time", "an RFC 3339 time such as 2024-01-01T00:00:00Z") from None
    return written


def _checked_encoding(written: str) -> str:
    try:
        name = codecs.lookup(written).name
        newline_bytes = 1 if name == "utf-8-sig" else len("\n".encode(name))
    except (LookupError, UnicodeError):
        raise fault(f"{written!r} is not a text encoding", "a name such as utf-8") from None
    if newline_bytes != 1:
        what = f"a newline is {newline_bytes} bytes in {written!r}, so files cannot be cut into lines"
        raise fault(what, "a name such as utf-8; convert the files first")
    return written


def _is_reached_from_outside(host: str) -> bool:
    """Whether an address is none of this machine's own; of a name that shows when it is looked up."""
    try:
        return not ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def _checked_delimiter(written: str) -> str:
    if len(written) != 1 or written in '\r\n"':
        raise fault(f"{written!r} cannot part columns", "one character, such as ',' or a tab")
    return written


class GeneratorSource(SpecModel):
    """Makes records by itself; the same settings and `seed` give the same records."""

    noun = "a generator"

    rpu: Count = 5
    """Records per `duration` over all lanes of the vertex; 0 means as fast as possible."""
    duration_s: PositiveDuration = Field(default=1.0, alias="duration")
    """The time unit of `rpu`. Duration, default 1s."""
    records: Count | None = None
    """Records in all, over every lane of the vertex. Absent: without end."""
    msg_size: Annotated[int, Field(strict=True, ge=1, le=RECORD_BYTES_MAX)] = 8
    """Bytes of each record's value, a JSON object with the record's `lane` and `number`, padded with spaces
    where it would be shorter; at most 7 MiB. Not used with `valueBlob`."""
    key_count: Count = 0
    """Number of different keys, dealt out in turn; 0 means records without a key."""
    value: Annotated[int, Field(strict=True, ge=0, lt=1 << 64)] | None = None
    """A number that every record carries as `value`, beside its own `number` within the vertex."""
    value_blob: Annotated[str, AfterValidator(_checked_base64)] | None = None
    """Base64 of the bytes that are the value of every record."""
    jitter_s: Duration = Field(default=0.0, alias="jitter")
    """Each record's event time is moved back by a random time up to this. Duration, default 0s."""
    out_of_order_share: Share = 0.0
    """Share of the records whose event time is moved back by `outOfOrderBy`. Default 0."""
    out_of_order_by_s: Duration = Field(default=0.0, alias="outOfOrderBy")
    """How far back out-of-order records lie; keep `watermark.maxDelay` at least this long if they
    shall not be late. Duration, default 0s."""
    late_share: Share = 0.0
    """Share of the records whose event time is moved back by `lateBy`. Default 0."""
    late_by_s: Duration = Field(default=0.0, alias="lateBy")
    """How far back late records lie; longer than `watermark.maxDelay` to be late. Duration,
    default 0s."""
    start: Annotated[str, AfterValidator(_checked_start)] | None = None
    """Event time of the first record (RFC 3339; without an offset, UTC). Default: the time at which the source was
    first opened."""
    event_time_step_s: PositiveDuration | None = Field(default=None, alias="eventTimeStep")
    """Event time between one record of the vertex and the next. Default: event time is the time at
    which the record is made; with `start`, `duration` / `rpu`."""
    seed: Count = 0
    """Start value of everything random in this source."""

    @classmethod
    def shape_faults(cls, data: Mapping[str, Any]) -> Iterator[ShapeFault]:
        """One kind of value; shares and how far back come in pairs."""
        yield from at_most_one(data, ("value", "valueBlob"), cls.noun)
        for share, by in (("lateShare", "lateBy"), ("outOfOrderShare", "outOfOrderBy")):
            if bool(data.get(share)) != bool(data.get(by)):
                given, absent = (share, by) if data.get(share) else (by, share)
                what = f"`{given}` has no effect without `{absent}`"
                yield ShapeFault((given,), what, f"`{share}` and `{by}` together")

    def relation_faults(self) -> Iterator[ShapeFault]:
        """With a start but no rate, event time needs a step."""
        if self.start is not None and self.rpu == 0 and self.event_time_step_s is None:
            what = "`start` with `rpu: 0` leaves event time without a step"
            yield ShapeFault(("start",), what, "`eventTimeStep` as well")


class CsvOptions(SpecModel):
    """How CSV text is read. A row becomes a JSON object with a member per column; an empty field of
    a column that is not a string becomes null."""

    noun = "csv"

    header: Flag = True
    """Whether the first line of each file names the columns."""
    delimiter: Annotated[str, AfterValidator(_checked_delimiter)] = ","
    """The character between two fields."""
    columns: tuple[Column, ...] = ()
    """Types of columns; with `header: false` also their names and order. Columns that are not
    listed are strings."""

    def relation_faults(self) -> Iterator[ShapeFault]:
        """Names come from the header or from here."""
        yield from repeated_columns(self.columns)
        if not self.header and not self.columns:
            yield ShapeFault((), "the columns have no names", "`columns`, or `header: true`")


class FileSource(SpecModel):
    """Reads files; each file is read by one lane, in order."""

    noun = "a file source"

    paths: Annotated[tuple[Text, ...], Field(min_length=1)]
    """Files or glob patterns (`data/*.csv`, `**` for any depth), relative to the pipeline file."""
    format: FileFormat = "lines"
    """`lines` (a record per line, without its end), `jsonl` (a JSON value per line) or `csv`. Names
    that end in `.gz` are decompressed; `follow` leaves them out."""
    csv: CsvOptions | None = None
    """How CSV is read; only with `format: csv`."""
    follow: Flag = False
    """Go on reading as files grow, are rotated or appear; the source then has no end."""
    encoding: Annotated[str, AfterValidator(_checked_encoding)] = "utf-8"
    """Encoding of the files, one in which a newline is one byte; record values are UTF-8."""

    def relation_faults(self) -> Iterator[ShapeFault]:
        """CSV options only for CSV."""
        if self.csv is not None and self.format != "csv":
            what = f"`csv` has no effect with `format: {self.format}`"
            yield ShapeFault(("csv",), what, "`format: csv`, or no `csv`")


class HttpAuth(SpecModel):
    """The bearer token that callers must send."""

    noun = "auth"

    token: Secret
    """Where the token stands: `{env: NAME}`, `{file: PATH}`, or a key of a Kubernetes Secret. Several tokens may stand
    there, one a line, and each is valid; a file is read again when it has changed."""


class HttpTls(SpecModel):
    """Certificates of a server, as PEM; files are read again when they have changed."""

    noun = "tls"

    certificate: Secret
    """Where the certificate stands, with those between it and its authority behind it: `{file: PATH}`, `{env: NAME}`,
    or a key of a Kubernetes Secret."""
    key: Secret
    """Where its private key stands, without a passphrase."""
    client_ca: Secret | None = None
    """Where the certificates of the authorities stand from which clients' certificates must come. Default: clients
    need none."""


IdsCount = Annotated[int, Field(strict=True, ge=FRAME_RECORDS_MAX)]
"""One read of a source has ids for at most that many records."""


class HttpSource(SpecModel):
    """Takes records by POST; answers 200 once they are committed."""

    noun = "an http source"

    host: Text = "127.0.0.1"
    """Address to listen on."""
    port: Port = HTTP_PORT
    """Port that lane 0 listens on, lane n on the n-th after it; 0 takes a free one for each."""
    auth: HttpAuth | None = None
    """Bearer token. Default: none is asked for."""
    tls: HttpTls | None = None
    """HTTPS, with these certificates. Default: HTTP."""
    allow_unauthenticated: Flag = False
    """Listen on an address that other machines reach though neither `auth` nor `tls.clientCa` asks who sends."""
    connections_max: Annotated[int, Field(strict=True, ge=2)] = Field(
        default=HTTP_CONNECTIONS_MAX, alias="connectionsMax"
    )
    """Connections to one lane at most; more are answered 503. At most half of the files that the process may open."""
    client_connections_max: PositiveCount = Field(default=HTTP_CLIENT_CONNECTIONS_MAX, alias="clientConnectionsMax")
    """Connections from one address at most, of IPv6 from one network of 64 bits, and at most half of
    `connectionsMax`; more are answered 429. Raise it where senders come through a proxy."""
    id_ttl_s: Annotated[PositiveDuration, Field(ge=1)] = Field(default=24 * 3600.0, alias="idTtl")
    """How long the id of a record is remembered, so that sending it again has no effect. Duration
    of at least 1s, default 24h."""
    ids_max: IdsCount = Field(default=IDS_MAX, alias="idsMax")
    """Record ids that are remembered at most, all partitions together; beyond it records with new ids are answered 503.
    The broker reserves 48 bytes for each; one that is remembered takes 30 bytes of memory."""
    buffer: PositiveCount = 500
    """Records of unanswered requests at most; beyond it the answer is 429."""

    @property
    def asks_who(self) -> bool:
        """Whether senders have to show who they are."""
        return self.auth is not None or (self.tls is not None and self.tls.client_ca is not None)

    def relation_faults(self) -> Iterator[ShapeFault]:
        """Nobody listens to the network by accident."""
        if self.asks_who and self.allow_unauthenticated:
            what = "`allowUnauthenticated` has no effect where senders show who they are"
            yield ShapeFault(("allowUnauthenticated",), what, "one of the two")
        if not self.asks_who and not self.allow_unauthenticated and _is_reached_from_outside(self.host):
            what = f"other machines reach {self.host}, and nothing asks senders who they are"
            yield ShapeFault(("host",), what, "`auth`, `tls.clientCa`, or `allowUnauthenticated: true`")


class UserSource(Program):
    """A source that the user wrote."""

    noun = "a udsource"

    id_ttl_s: Annotated[PositiveDuration, Field(ge=1)] = Field(default=24 * 3600.0, alias="idTtl")
    """How long the id of a record is remembered, where the source gives ids. Duration of at least 1s, default 24h."""
    ids_max: IdsCount = Field(default=IDS_MAX, alias="idsMax")
    """Record ids that are remembered at most, all partitions together; beyond it a lane waits until its oldest are
    forgotten."""


class Source(SpecModel):
    """Where the records of a source vertex come from: exactly one kind, and what is read off them."""

    noun = "a source"
    kinds: ClassVar[tuple[str, ...]] = ("generator", "file", "http", "udsource")

    generator: GeneratorSource | None = None
    """Records made here."""
    file: FileSource | None = None
    """Records read from files."""
    http: HttpSource | None = None
    """Records sent by HTTP."""
    udsource: UserSource | None = None
    """Records from a program of the user's."""
    event_time: EventTime | None = None
    """Where event time is found. Default: what the source itself says (the generator's time, the
    HTTP header), else the time of reading."""
    keys: tuple[Text, ...] = ()
    """Dotted paths of members of the JSON value that become the record's keys, in this order."""
    transformer: Transformer | None = None
    """A program for each record, after `eventTime` and `keys`."""
    on_invalid: OnInvalid | None = None
    """What becomes of a record whose text, event time or key cannot be read: `deadLetter` (to the
    vertex's dead-letter edges), `drop` (counted) or `stop`. Default: `deadLetter` if the vertex has
    a dead-letter edge, else `stop`."""

    @classmethod
    def shape_faults(cls, data: Mapping[str, Any]) -> Iterator[ShapeFault]:
        """One kind of source."""
        yield from exactly_one(data, cls.kinds, cls.noun)

    def relation_faults(self) -> Iterator[ShapeFault]:
        """Event time is where the source has it."""
        if self.event_time is not None and self.event_time.header is not None and self.kind in ("generator", "file"):
            what = f"records of a {self.kind} source have no headers"
            yield ShapeFault(("eventTime", "header"), what, "`eventTime.field`")

    @property
    def kind(self) -> Literal["generator", "file", "http", "udsource"]:
        """Which of the four it is."""
        if self.generator is not None:
            return "generator"
        if self.file is not None:
            return "file"
        return "http" if self.http is not None else "udsource"

    @property
    def bounded(self) -> bool | None:
        """Whether it ends by itself; None where only the user's program knows."""
        if self.generator is not None:
            return self.generator.records is not None
        if self.file is not None:
            return not self.file.follow
        return False if self.http is not None else None
