"""`format`: how the values of records are encoded in external systems, and where their schemas are. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Annotated, Literal
from urllib.parse import urlsplit

from millstream import codes
from millstream.spec.addresses import address_check
from millstream.spec.problems import Path
from millstream.spec.references import TextOrReference, secret_in_file
from millstream.spec.tls import ServerTls, is_open
from millstream.spec.values import (
    After,
    Flag,
    Needed,
    PositiveDuration,
    ShapeProblem,
    SpecModel,
    Strict,
    Text,
    conflicts,
    field,
)

_READS: Mapping[str, Sequence[Needed]] = {"avro": [Needed("fastavro", "millstream[avro]")]}
"""What is needed to read each encoding."""
_WRITES: Mapping[str, Sequence[Needed]] = {**_READS, "json": [Needed("jsonschema_rs", "millstream[jsonschema]")]}
"""What is needed to write it."""


_check = address_check(
    "the address of a schema registry",
    ("http", "https"),
    "`https://host:port/path`, with `user` and `password` as separate fields",
    path=lambda _: True,
)


def _checked_url(written: str) -> str:
    """Removes a trailing `/`, because paths are appended to the URL."""
    return _check(written).rstrip("/")


class SchemaRegistry(SpecModel):
    """A schema registry with Confluent's REST interface."""

    noun = "a schema registry"

    url: Annotated[Text, After(_checked_url)]
    """Address of the registry, `http://host:port` or `https://host:port`, with the path before `/schemas` if there is
    one."""
    user: TextOrReference | None = None
    """User for basic authentication, or the key of an API key. Default: no authentication."""
    password: TextOrReference | None = None
    """The user's password, as `{env: NAME}` or `{file: PATH}`."""
    tls: ServerTls | None = None
    """Which certificates are trusted if `url` is `https://`. Default: those of the system's authorities."""
    timeout_s: PositiveDuration = field(default=10.0, alias="timeout")
    """Maximum time to wait for a response before a request is repeated. Duration, default 10s."""

    def relation_problems(self) -> Iterator[ShapeProblem]:
        """Rejects `tls` for an unencrypted connection, and a user without a password or the reverse."""
        yield from conflicts(
            (self.tls is not None and not self.encrypted, ("tls",), "`tls` has no effect with http://", "https://"),
            (
                (self.user is None) != (self.password is None),
                ("user",),
                "`user` and `password` belong together",
                "both of them, or neither",
            ),
        )

    @property
    def encrypted(self) -> bool:
        """Whether requests are encrypted."""
        return urlsplit(self.url).scheme == "https"


class FormatModel(SpecModel):
    """The common settings of formats of sources and sinks."""

    encoding: Literal["avro", "json", "protobuf"]
    """`avro`, `protobuf`, or `json` with a JSON Schema. All in Confluent's wire format: a zero byte, the id of the
    schema in four bytes, and the value."""
    registry: SchemaRegistry
    """Where the schemas are."""

    def needs(self) -> Iterator[Needed]:
        yield from _READS.get(self.encoding, ())

    def notes(self, path: Path) -> Iterator[tuple[Path, str]]:
        """Notes on a valid format, each with its place."""
        registry = self.registry
        if isinstance(registry.password, str):
            yield (*path, "registry", "password"), secret_in_file("password")
        if registry.password is not None and is_open(registry.url):
            what = "the password is sent to the schema registry unencrypted; https:// encrypts it"
            yield (*path, "registry", "url"), what


class Format(FormatModel):
    """The encoding of values in the external system. Records in the pipeline have JSON values."""

    noun = "a format"

    reader_schema: Annotated[int, Strict(ge=1)] | None = None
    """Id of the Avro schema to which values are resolved, whatever their writer schema. Default: each value is read
    with its writer schema."""

    def relation_problems(self) -> Iterator[ShapeProblem]:
        """Rejects a reader schema except for Avro, the only encoding that resolves schemas."""
        if self.reader_schema is not None and self.encoding != "avro":
            what = f"`readerSchema` has no effect with `encoding: {self.encoding}`"
            yield ShapeProblem(codes.FIELDS_CONFLICT, ("readerSchema",), what, "`encoding: avro`")


class SinkFormat(FormatModel):
    """The encoding of values in the external system. Records in the pipeline have JSON values."""

    noun = "a format"

    subject: Text | None = None
    """Subject of the schema in the registry. Default: that of Confluent's clients, `<topic>-value`, for a `kafka` sink.
    Other sinks need one."""
    schema_text: TextOrReference | None = field(default=None, alias="schema")
    """The schema to write with: its text, or `{file: PATH}`. Default: the newest in the subject when the sink is
    opened."""
    auto_register: Flag = False
    """Register `schema` in the subject if the subject does not have it."""
    message: Text | None = None
    """Name of the message in a Protobuf schema. Default: its first message."""

    def relation_problems(self) -> Iterator[ShapeProblem]:
        """Rejects `autoRegister` without a schema, and `message` except for Protobuf."""
        yield from conflicts(
            (
                self.auto_register and self.schema_text is None,
                ("autoRegister",),
                "`autoRegister` has no effect without a schema",
                "`schema`",
            ),
            (
                self.message is not None and self.encoding != "protobuf",
                ("message",),
                f"`message` has no effect with `encoding: {self.encoding}`",
                "`encoding: protobuf`",
            ),
        )

    def needs(self) -> Iterator[Needed]:
        yield from _WRITES.get(self.encoding, ())
