"""How pipeline files name a Pulsar cluster and its topics."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Annotated, Any
from urllib.parse import urlsplit

from millstream import codes
from millstream.spec.addresses import address_check
from millstream.spec.problems import Path
from millstream.spec.references import Secret, TextOrReference
from millstream.spec.rules import After
from millstream.spec.tls import ServerTls, stays_on_this_machine
from millstream.spec.values import PositiveDuration, ShapeProblem, SpecModel, Text, exactly_one, field, problem
from millstream_connectors.shared.oauth2.settings import Oauth2, oauth2_notes

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


class PulsarBasic(SpecModel):
    """A user and a password."""

    noun = "basic"

    user: TextOrReference
    """The user's name, or a reference to it."""
    password: Secret
    """The password: `{env: NAME}`, `{file: PATH}`, or a key of a Kubernetes Secret."""


class PulsarAuth(SpecModel):
    """How the cluster knows who connects: one of these."""

    noun = "auth"

    token: Secret | None = None
    """By a token, such as a JSON Web Token: `{env: NAME}`, `{file: PATH}`, or a key of a Kubernetes Secret."""
    basic: PulsarBasic | None = None
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
        if self.tls is not None and not self.encrypted:
            what = "`tls` has no effect with pulsar://"
            yield ShapeProblem(codes.FIELDS_CONFLICT, ("tls",), what, "pulsar+ssl://")

    @property
    def encrypted(self) -> bool:
        """Whether the connection uses TLS."""
        return self._scheme == tuple(_PORTS)[1]

    @property
    def places(self) -> Sequence[tuple[str, int]]:
        """Host and port of each address, in the order in which they are written."""
        written = self.server_addr.partition("://")[2].split(",")
        parts = [urlsplit(f"//{place.strip()}") for place in written]
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


def cluster_notes(settings: PulsarCluster, path: Path) -> Iterator[tuple[Path, str]]:
    """What `validate` notes about a connection that sends a secret over the network unencrypted."""
    is_remote = not all(stays_on_this_machine(host.lower()) for host, _ in settings.places)
    if settings.auth is not None and not settings.encrypted and is_remote:
        what = "the credentials and the records are sent to the cluster unencrypted"
        yield (*path, "serverAddr"), f"{what}; pulsar+ssl:// encrypts them"
    oauth2 = None if settings.auth is None else settings.auth.oauth2
    if oauth2 is not None:
        yield from oauth2_notes(oauth2, (*path, "auth", "oauth2"))
