"""The settings of the `kafka` source and sink, as pipeline files have them. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Annotated, Any, Literal

from millstream import codes
from millstream.spec.addresses import address_check, without_secrets
from millstream.spec.problems import Path
from millstream.spec.references import Secret, TextOrReference
from millstream.spec.tls import is_open, whole_pair
from millstream.spec.values import (
    After,
    Flag,
    NotEmpty,
    PositiveDuration,
    ShapeProblem,
    SpecModel,
    Text,
    field,
    problem,
    text_check,
    without_effect,
)
from millstream_connectors.shared.starts import EARLIEST, Start

PATTERN = "^"
"""First character of a regular expression in place of a topic."""
_BROKER = re.compile(r"(\[[0-9A-Fa-f:.]+\]|[A-Za-z0-9._-]+):[0-9]{1,5}")
_OURS = re.compile(
    r"(sasl|ssl|https)\..*|security\.protocol|bootstrap\.servers|metadata\.broker\.list|.*_cb|plugin\..*|opaque|"
    r"transactional\.id|enable\.idempotence|acks|request\.required\.acks|partitioner|compression\.(codec|type)|"
    r"message\.max\.bytes|delivery\.report\.only\.error|"
    r"group\..*|isolation\.level|auto\.offset\.reset|enable\.auto\..*|enable\.partition\.eof|client\.rack"
)
"""Settings of librdkafka that Millstream sets itself: exactly-once depends on them, or a field has them."""


def _checked_broker(written: str) -> str:
    if _BROKER.fullmatch(written) is None:
        raise problem(
            codes.VALUE_MALFORMED, f"{without_secrets(written)!r} is not the address of a broker", "host:port"
        )
    return written


def _checked_setting(written: str) -> str:
    if _OURS.fullmatch(written) is not None:
        what = f"`{written}` cannot be set: Millstream sets it, or there is a field for it"
        raise problem(codes.NOT_ALLOWED, what, "another setting of librdkafka")
    return written


_Extension = Annotated[
    Text,
    text_check(
        re.compile("(?!auth$)[A-Za-z]+").fullmatch, "is not the name of an extension", "letters, such as logicalCluster"
    ),
]
# librdkafka would take what follows a comma for another extension.
_ExtensionValue = Annotated[
    Text, text_check(re.compile("[^,]*").fullmatch, "is not the value of an extension", "text without a comma")
]
_TOKEN_ENDPOINT = address_check(
    "the address of a token endpoint", ("http", "https"), "https://host/path", path=lambda _: True
)
_PASSWORDS = ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512")
_TOKENS = ("OAUTHBEARER",)
_MECHANISMS = (*_PASSWORDS, *_TOKENS)


class KafkaTls(SpecModel):
    """TLS to the brokers. Certificates and keys are PEM, and are read when the vertex starts."""

    noun = "tls"

    ca: Secret | None = None
    """Certificates of the authorities that are trusted to sign the brokers': `{file: PATH}`, `{env: NAME}`, or a key of
    a Kubernetes Secret. Default: those of the system."""
    certificate: Secret | None = None
    """The vertex's own certificate, for brokers that require one."""
    key: Secret | None = None
    """Its private key, without a passphrase."""

    @classmethod
    def shape_problems(cls, data: Mapping[str, Any]) -> Iterator[ShapeProblem]:
        """A certificate and its key."""
        yield from whole_pair(data)


class KafkaOauthbearer(SpecModel):
    """A client that gets tokens by OAuth 2 (client credentials)."""

    noun = "oauthbearer"

    client_id: TextOrReference
    """The client's id, as text or as `{env: NAME}` or `{file: PATH}`."""
    client_secret: Secret
    """Its secret: `{env: NAME}`, `{file: PATH}`, or a key of a Kubernetes Secret."""
    token_endpoint_url: Annotated[Text, After(_TOKEN_ENDPOINT)]
    """Address at which it gets its tokens: `https://host/path`."""
    scope: Text | None = None
    """Scopes to ask for, separated by spaces. Default: none, so the server decides."""
    extensions: dict[_Extension, _ExtensionValue] = field(default_factory=dict)
    """Extensions for the brokers, such as `logicalCluster` and `identityPoolId` of Confluent Cloud."""
    ca: Secret | None = None
    """Certificates of the authorities that are trusted to sign that of the token endpoint. Default: those of the
    system."""

    @classmethod
    def shape_problems(cls, data: Mapping[str, Any]) -> Iterator[ShapeProblem]:
        """An authority only where there is encryption."""
        if str(data.get("tokenEndpointUrl")).startswith("http:"):
            expected = "`tokenEndpointUrl: https://host/path`"
            yield from without_effect({"ca": data.get("ca")}, "on an `http://` address", expected)


class KafkaSasl(SpecModel):
    """Credentials for the brokers."""

    noun = "sasl"

    mechanism: Literal["PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512", "OAUTHBEARER"]
    """The mechanism that the brokers are configured for."""
    user: TextOrReference | None = None
    """The user's name, as text or as `{env: NAME}` or `{file: PATH}`. Not for `OAUTHBEARER`."""
    password: Secret | None = None
    """The password: `{env: NAME}`, `{file: PATH}`, or a key of a Kubernetes Secret. Not for `OAUTHBEARER`."""
    oauthbearer: KafkaOauthbearer | None = None
    """The client that gets tokens, for `OAUTHBEARER`."""

    @classmethod
    def shape_problems(cls, data: Mapping[str, Any]) -> Iterator[ShapeProblem]:
        """Requires what the mechanism needs, and rejects what it does not use."""
        mechanism = data.get("mechanism")
        if mechanism not in _MECHANISMS:
            return
        for name, of in (("user", _PASSWORDS), ("password", _PASSWORDS), ("oauthbearer", _TOKENS)):
            given = data.get(name) is not None
            if given and mechanism not in of:
                what = f"`{name}` has no effect with `mechanism: {mechanism}`"
                yield ShapeProblem(codes.FIELDS_CONFLICT, (name,), what, f"`mechanism: {of[0]}`, or no `{name}`")
            elif not given and mechanism in of:
                yield ShapeProblem(
                    codes.FIELD_MISSING, (), f"`{name}` is missing, which `mechanism: {mechanism}` needs", f"`{name}`"
                )


class KafkaCluster(SpecModel):
    """A cluster, and how to connect to it."""

    noun = "a Kafka cluster"

    brokers: Annotated[tuple[Annotated[Text, After(_checked_broker)], ...], NotEmpty()]
    """Addresses (`host:port`) of some brokers, from which the others are found."""
    tls: KafkaTls | None = None
    """TLS; `{}` trusts the authorities of the system. Default: connections are not encrypted."""
    sasl: KafkaSasl | None = None
    """Credentials. Default: none."""
    timeout_s: PositiveDuration = field(default=60.0, alias="timeout")
    """How long a vertex waits for the cluster when it starts before it warns and connects again. Duration, default
    1m."""
    config: dict[Annotated[Text, After(_checked_setting)], Text] = field(default_factory=dict)
    """Additional settings of librdkafka, with librdkafka's names and text values."""

    def notes(self, path: Path) -> Iterator[tuple[Path, str]]:
        """Notes if a password, a token or the secret of a client is sent unencrypted."""
        if (sasl := self.sasl) is None:
            return
        if self.tls is None and sasl.mechanism in ("PLAIN", *_TOKENS):
            what = "password" if sasl.mechanism == "PLAIN" else "token"
            yield (*path, "sasl"), f"the {what} is sent to the brokers unencrypted; `tls` encrypts the connection"
        if sasl.oauthbearer is not None and is_open(sasl.oauthbearer.token_endpoint_url):
            place = (*path, "sasl", "oauthbearer", "tokenEndpointUrl")
            yield place, "the client's secret is sent over the network unencrypted; https:// encrypts it"


def _checked_topics(written: str) -> str:
    for name in written.split(","):
        try:
            re.compile(name.strip() if name.strip().startswith(PATTERN) else "")
        except re.error as error:
            what = f"{name.strip()!r} is not a regular expression: {error}"
            raise problem(codes.VALUE_MALFORMED, what, "a name, or an expression such as `^orders-`") from None
    return written


class KafkaSource(KafkaCluster):
    """Reads Kafka topics; each of their partitions is read by one lane, in order."""

    noun = "a kafka source"

    topic: Annotated[Text, After(_checked_topics)]
    """The topic, or several separated by commas. A name that begins with `^` is a regular expression, matched from the
    first character of a topic: `^orders-`. Matching topics that are created later are found within half a minute."""
    start: Start = EARLIEST
    """Where the first run starts: `earliest`, `latest`, or at the first record since a time (RFC 3339, with an offset).
    Later runs continue where the last commit ended. Partitions that are added later are read from their beginning."""
    stop_at_end: Flag = False
    """End at the record that is the last one when the first run starts."""
    consumer_group: Text | None = None
    """A group for which positions are committed, for tools that show lags. The source never reads them. Default:
    none."""

    @property
    def topics(self) -> Sequence[str]:
        """The names, each once."""
        return tuple(dict.fromkeys(name.strip() for name in self.topic.split(",") if name.strip()))


class KafkaSink(KafkaCluster):
    """Writes records to a Kafka topic, in transactions that also hold the lane's position."""

    noun = "a kafka sink"

    topic: Text
    """The topic, which must exist."""
    transactions: Flag = True
    """Write in transactions, exactly once. `false`: at least once; readers of uncommitted data see records sooner."""
    set_key: Flag = True
    """Use the keys of each record as Kafka's key: a single key as it is, several as a JSON array."""
    compression: Literal["none", "gzip", "snappy", "lz4", "zstd"] = "none"
    """How batches are compressed."""
