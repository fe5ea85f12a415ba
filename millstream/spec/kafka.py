"""What Kafka sources and sinks have in common: where a cluster is, and how it knows the pipeline. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Annotated, Any, Literal

from millstream import codes
from millstream.spec.problems import Path
from millstream.spec.references import Secret, TextOrReference
from millstream.spec.rules import After, NotEmpty
from millstream.spec.values import PositiveDuration, ShapeProblem, SpecModel, Text, field, problem

PATTERN = "^"
"""What a regular expression in place of a topic begins with."""
_BROKER = re.compile(r"(\[[0-9A-Fa-f:.]+\]|[A-Za-z0-9._-]+):[0-9]{1,5}")
_OURS = re.compile(
    r"(sasl|ssl)\..*|security\.protocol|bootstrap\.servers|metadata\.broker\.list|.*_cb|plugin\..*|opaque|"
    r"transactional\.id|enable\.idempotence|acks|request\.required\.acks|partitioner|compression\.(codec|type)|"
    r"message\.max\.bytes|delivery\.report\.only\.error|"
    r"group\..*|isolation\.level|auto\.offset\.reset|enable\.auto\..*|enable\.partition\.eof|client\.rack"
)
"""Settings of librdkafka that Millstream decides about itself: exactly-once rests on them, or a field has them."""


def _checked_broker(written: str) -> str:
    if _BROKER.fullmatch(written) is None:
        raise problem(codes.VALUE_MALFORMED, f"{written!r} is not the address of a broker", "host:port")
    return written


def _checked_setting(written: str) -> str:
    if _OURS.fullmatch(written) is not None:
        what = f"`{written}` is not free: Millstream sets it, or a field of its own does"
        raise problem(codes.NOT_ALLOWED, what, "another setting of librdkafka")
    return written


class KafkaTls(SpecModel):
    """TLS to the brokers. Certificates and keys are PEM, and are read when the vertex starts."""

    noun = "tls"

    ca: Secret | None = None
    """Where the certificates of the authorities stand that the brokers' may come from: `{file: PATH}`, `{env: NAME}`,
    or a key of a Kubernetes Secret. Default: those of the system."""
    certificate: Secret | None = None
    """Where the vertex's own certificate stands, for brokers that ask for one."""
    key: Secret | None = None
    """Where its private key stands, without a passphrase."""

    @classmethod
    def shape_problems(cls, data: Mapping[str, Any]) -> Iterator[ShapeProblem]:
        """A certificate and its key."""
        if (data.get("certificate") is None) != (data.get("key") is None):
            yield ShapeProblem(
                codes.FIELDS_CONFLICT, (), "`certificate` and `key` belong together", "both of them, or neither"
            )


class KafkaSasl(SpecModel):
    """How the brokers know the pipeline."""

    noun = "sasl"

    mechanism: Literal["PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512"]
    """As the brokers are set up."""
    user: TextOrReference
    """The user's name, or where it stands."""
    password: Secret
    """Where the password stands: `{env: NAME}`, `{file: PATH}`, or a key of a Kubernetes Secret."""


class KafkaCluster(SpecModel):
    """A cluster, and how to connect to it."""

    noun = "a Kafka cluster"

    brokers: Annotated[tuple[Annotated[Text, After(_checked_broker)], ...], NotEmpty()]
    """Addresses (`host:port`) of some brokers, by which all are found."""
    tls: KafkaTls | None = None
    """TLS; `{}` for the authorities of the system. Default: connections are not encrypted."""
    sasl: KafkaSasl | None = None
    """Who connects. Default: the brokers ask for no password."""
    timeout_s: PositiveDuration = field(default=60.0, alias="timeout")
    """How long a vertex waits for the cluster when it starts, before it ends and is started again. Later it waits as
    long as it takes. Duration, default 1m."""
    config: dict[Annotated[Text, After(_checked_setting)], Text] = field(default_factory=dict)
    """More settings of librdkafka, by their names there, values as text."""


def clear_password(cluster: KafkaCluster, path: Path) -> Iterator[tuple[Path, str]]:
    """A note, where a password goes over the network in the clear."""
    if cluster.sasl is not None and cluster.tls is None and cluster.sasl.mechanism == "PLAIN":
        yield (*path, "sasl"), "the password goes to the brokers in the clear; `tls` beside it encrypts it"
