"""The settings of the `pulsar` source and sink, as pipeline files have them. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Annotated, Any
from urllib.parse import urlsplit

from millstream import codes
from millstream.spec.addresses import SERVER_CHECK, address_check
from millstream.spec.problems import Path
from millstream.spec.references import Secret
from millstream.spec.tls import ServerTls, is_open, stays_on_this_machine
from millstream.spec.values import (
    After,
    Flag,
    PositiveDuration,
    ShapeProblem,
    SpecModel,
    Strict,
    Text,
    exactly_one,
    field,
    problem,
    without_effect,
)
from millstream_connectors.shared.oauth2.settings import Oauth2
from millstream_connectors.shared.servers import BasicAuth
from millstream_connectors.shared.starts import EARLIEST, Start

_PORTS = {"pulsar": 6650, "pulsar+ssl": 6651}
PERSISTENT = "persistent://"
_TOPIC = re.compile(r"(persistent://)?[^/:\s]+/[^/:\s]+/[^/:\s]+|[^/:\s]+")
_DEFAULT_NAMESPACE = "public/default"

_check_address = address_check(
    "the address of a Pulsar cluster",
    _PORTS,
    "pulsar://host:port, or pulsar+ssl:// with TLS; set `auth` separately",
    path=("", "/").__contains__,
)


def _checked_addresses(written: str) -> str:
    scheme, separator, places = written.partition("://")
    # A password may have a comma, so an address with one is checked, and omitted from the message, as a whole.
    for place in [places] if "@" in written else places.split(","):
        _check_address(f"{scheme}{separator}{place.strip()}")
    return written


def topic_check(written: str) -> str:
    """Raises a problem for what is not the name of a persistent topic."""
    if _TOPIC.fullmatch(written) is None:
        what = f"{written!r} is not the name of a persistent topic"
        raise problem(codes.VALUE_MALFORMED, what, "a name, or persistent://tenant/namespace/name")
    return written


def full_name(topic: str) -> str:
    """`persistent://tenant/namespace/name` of a topic."""
    name = topic.removeprefix(PERSISTENT)
    return PERSISTENT + (name if "/" in name else f"{_DEFAULT_NAMESPACE}/{name}")


class PulsarAuth(SpecModel):
    """How the cluster knows who connects: one of these."""

    noun = "auth"

    token: Secret | None = None
    """By a token, such as a JSON Web Token: `{env: NAME}`, `{file: PATH}`, or a key of a Kubernetes Secret."""
    basic: BasicAuth | None = None
    """By user and password."""
    oauth2: Oauth2 | None = None
    """By tokens that an issuer gives to a client (OAuth 2.0). Each is replaced before it expires."""

    @classmethod
    def shape_problems(cls, data: Mapping[str, Any]) -> Iterator[ShapeProblem]:
        """Requires exactly one kind of credentials."""
        yield from exactly_one(data, ("token", "basic", "oauth2"), cls.noun)


class PulsarCluster(SpecModel):
    """A cluster, and how to connect to it."""

    noun = "a Pulsar cluster"

    server_addr: Annotated[Text, After(_checked_addresses)]
    """A broker or proxy of the cluster, `pulsar://host:port`, or `pulsar+ssl://host:port` with TLS; several of a
    cluster, separated by commas: `pulsar://one:6650,two:6650`."""
    auth: PulsarAuth | None = None
    """How the cluster knows who connects. Default: by `tls.certificate`, if it is set; otherwise it does not ask."""
    tls: ServerTls | None = None
    """Which certificates are accepted if `serverAddr` has the scheme for TLS. Default: those of the system's
    certificate authorities."""
    timeout_s: PositiveDuration = field(default=10.0, alias="timeout")
    """Longest time to wait for an answer. Duration, default 10s."""

    def relation_problems(self) -> Iterator[ShapeProblem]:
        """Rejects `tls` for an unencrypted connection."""
        if not self.encrypted:
            yield from without_effect({"tls": self.tls}, "with pulsar://", "pulsar+ssl://")

    @property
    def encrypted(self) -> bool:
        """Whether the connection uses TLS."""
        return self._scheme == tuple(_PORTS)[1]

    @property
    def places(self) -> Sequence[tuple[str, int]]:
        """Host and port of each address, in the order in which they are written."""
        parts = [urlsplit(f"//{place.strip()}") for place in self.server_addr.partition("://")[2].split(",")]
        return [(one.hostname or "", one.port or _PORTS[self._scheme]) for one in parts]

    @property
    def shown(self) -> str:
        """Its addresses in messages."""
        return ", ".join(f"{host}:{port}" for host, port in self.places)

    @property
    def service_url(self) -> str:
        """Its addresses, as the client takes them."""
        places = (f"[{host}]:{port}" if ":" in host else f"{host}:{port}" for host, port in self.places)
        return f"{self._scheme}://{','.join(places)}"

    @property
    def _scheme(self) -> str:
        return urlsplit(self.server_addr).scheme

    def notes(self, path: Path) -> Iterator[tuple[Path, str]]:
        """Notes on a connection that sends a secret over the network unencrypted."""
        is_remote = not all(stays_on_this_machine(host.lower()) for host, _ in self.places)
        if self.auth is not None and not self.encrypted and is_remote:
            what = "the credentials and the records are sent to the cluster unencrypted"
            yield (*path, "serverAddr"), f"{what}; pulsar+ssl:// encrypts them"


def _checked_topics(written: str) -> str:
    for name in written.split(","):
        topic_check(name.strip())
    return written


class PulsarSource(PulsarCluster):
    """Reads Pulsar topics by message id; each of their partitions is read by one lane, in order."""

    noun = "a pulsar source"

    topic: Annotated[Text, After(_checked_topics)]
    """The topic, or several separated by commas: a name in `public/default`, or `persistent://tenant/namespace/name`."""
    subscription_name: Text
    """A subscription that follows the last commit, so that Pulsar keeps the messages after it. The source never reads
    its position. It is created when it is needed."""
    start: Start = EARLIEST
    """Where the first run starts: `earliest`, `latest`, or at the first message published since a time (RFC 3339, with
    an offset). Later runs continue after the message of the last commit."""
    stop_at_end: Flag = False
    """End at the message that is the last one when the first run starts."""
    receiver_queue_size: Annotated[int, Strict(ge=1, le=100_000)] = 500
    """Maximum number of messages of a partition that are received and not read yet."""

    @property
    def topics(self) -> Sequence[str]:
        """Their full names, without duplicates."""
        return tuple(dict.fromkeys(full_name(name.strip()) for name in self.topic.split(",")))


class PulsarSink(PulsarCluster):
    """Publishes records to a Pulsar topic, with sequence ids by which the brokers drop repeated messages."""

    noun = "a pulsar sink"

    topic: Annotated[Text, After(topic_check)]
    """The topic: a name in `public/default`, or `persistent://tenant/namespace/name`."""
    admin_url: Annotated[Text, After(SERVER_CHECK)] | None = None
    """Address of the cluster's web service, `http://host:8080` or `https://host:8443`. `validate --online` asks it
    whether the brokers deduplicate messages of the topic. Default: none."""
    deduplication: Flag = True
    """Whether the brokers have to deduplicate messages (`brokerDeduplicationEnabled`, or `set-deduplication` of the
    namespace or the topic). If they do not, or no partition remembers the lane any more, the lane stops. `false`: it
    writes anyway, at least once."""

    @property
    def full_topic(self) -> str:
        return full_name(self.topic)

    def notes(self, path: Path) -> Iterator[tuple[Path, str]]:
        """Notes on connections that send a secret over the network unencrypted."""
        yield from super().notes(path)
        if self.auth is not None and self.admin_url is not None and is_open(self.admin_url):
            yield (*path, "adminUrl"), "the credentials are sent to the web service unencrypted; https:// encrypts it"
