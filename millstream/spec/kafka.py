"""The common settings of Kafka sources and sinks: the address of a cluster, and credentials. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Annotated, Any, Literal

from millstream import codes
from millstream.spec.addresses import without_secrets
from millstream.spec.problems import Path
from millstream.spec.references import Secret, TextOrReference
from millstream.spec.rules import After, NotEmpty
from millstream.spec.values import PositiveDuration, ShapeProblem, SpecModel, Text, field, problem

PATTERN = "^"
"""First character of a regular expression in place of a topic."""
_BROKER = re.compile(r"(\[[0-9A-Fa-f:.]+\]|[A-Za-z0-9._-]+):[0-9]{1,5}")
_OURS = re.compile(
    r"(sasl|ssl)\..*|security\.protocol|bootstrap\.servers|metadata\.broker\.list|.*_cb|plugin\..*|opaque|"
    r"transactional\.id|enable\.idempotence|acks|request\.required\.acks|partitioner|compression\.(codec|type)|"
    r"message\.max\.bytes|delivery\.report\.only\.error|"
    r"group\..*|isolation\.level|auto\.offset\.reset|enable\.auto\..*|enable\.partition\.eof|client\.rack"
)
"""Settings of librdkafka that Millstream sets itself: exactly-once depends on them, or a field has them."""


def _checked_broker(written: str) -> str:
    if _BROKER.fullmatch(written) is None:
        what = f"{without_secrets(written)!r} is not the address of a broker"
        raise problem(codes.VALUE_MALFORMED, what, "host:port")
    return written


def _checked_setting(written: str) -> str:
    if _OURS.fullmatch(written) is not None:
        what = f"`{written}` cannot be set: Millstream sets it, or there is a field for it"
        raise problem(codes.NOT_ALLOWED, what, "another setting of librdkafka")
    return written


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
        if (data.get("certificate") is None) != (data.get("key") is None):
            yield ShapeProblem(
                codes.FIELDS_CONFLICT, (), "`certificate` and `key` belong together", "both of them, or neither"
            )


class KafkaSasl(SpecModel):
    """Credentials for the brokers."""

    noun = "sasl"

    mechanism: Literal["PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512"]
    """The mechanism that the brokers are configured for."""
    user: TextOrReference
    """The user's name, as text or as `{env: NAME}` or `{file: PATH}`."""
    password: Secret
    """The password: `{env: NAME}`, `{file: PATH}`, or a key of a Kubernetes Secret."""


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


def clear_password(cluster: KafkaCluster, path: Path) -> Iterator[tuple[Path, str]]:
    """A note if a password is sent unencrypted."""
    if cluster.sasl is not None and cluster.tls is None and cluster.sasl.mechanism == "PLAIN":
        yield (*path, "sasl"), "the password is sent to the brokers unencrypted; `tls` encrypts the connection"
