"""The settings of the `nats` source and sink, as pipeline files have them. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import combinations
from typing import Annotated, Any
from urllib.parse import urlsplit

from millstream import codes
from millstream.spec.addresses import without_secrets
from millstream.spec.problems import Path
from millstream.spec.references import Secret, TextOrReference
from millstream.spec.tls import ServerTls, stays_on_this_machine
from millstream.spec.values import (
    After,
    Needed,
    PositiveDuration,
    ShapeProblem,
    SpecModel,
    Text,
    exactly_one,
    field,
    problem,
)
from millstream_connectors.shared.servers import BasicAuth

_SCHEMES = ("nats", "tls")


def _checked_url(written: str) -> str:
    for server in written.split(","):
        try:
            parts = urlsplit(server.strip())
            valid = parts.scheme in _SCHEMES and bool(parts.hostname) and parts.port != 0 and parts.path in ("", "/")
        except ValueError:
            valid = False
        if not valid or "@" in server:
            what = f"{without_secrets(server)!r} is not the address of a NATS server"
            expected = "nats://host:port, or tls://host:port, several separated by commas; set `auth` separately"
            raise problem(codes.VALUE_MALFORMED, what, expected)
    return written


def checked_subject(written: str) -> str:
    """A subject to publish to. Raises a problem."""
    if not is_subject(written) or any(token in ("*", ">") for token in written.split(".")):
        raise problem(
            codes.VALUE_MALFORMED, f"{written!r} is not a subject", "tokens separated by dots, such as orders.new"
        )
    return written


def checked_filter(written: str) -> str:
    """A subject or pattern to read, or several. Raises a problem."""
    for name in filters_of(written):
        if not is_subject(name):
            what = f"{name!r} is not a subject or a pattern of subjects"
            raise problem(codes.VALUE_MALFORMED, what, "orders.new, orders.*, or orders.>")
    return written


def is_subject(text: str) -> bool:
    """Whether it is a subject or a pattern of subjects."""
    tokens = text.split(".")
    return all(tokens) and not any(char.isspace() for char in text) and ">" not in tokens[:-1]


def filters_of(written: str) -> Sequence[str]:
    """The comma-separated patterns, each once."""
    return tuple(dict.fromkeys(name.strip() for name in written.split(",")))


def overlap(one: str, other: str) -> bool:
    """Whether a subject can match both patterns."""
    left, right = one.split("."), other.split(".")
    for a, b in zip(left, right, strict=False):
        if ">" in (a, b):
            return True
        if a != b and "*" not in (a, b):
            return False
    return len(left) == len(right)


def overlaps(patterns: Sequence[str], loc: tuple[str, ...]) -> Iterator[ShapeProblem]:
    """A problem for each pair of patterns at `loc` that match the same subjects: their messages would be read twice."""
    for one, other in combinations(patterns, 2):
        if overlap(one, other):
            what = f"{one!r} and {other!r} match the same subjects, so their messages would be read twice"
            yield ShapeProblem(codes.FIELDS_CONFLICT, loc, what, "patterns that match different subjects")


class NatsAuth(SpecModel):
    """How the pipeline identifies itself to the server: one of these."""

    noun = "auth"

    basic: BasicAuth | None = None
    """By user and password."""
    token: Secret | None = None
    """By the token of a server that has one for all its clients."""
    nkey: Secret | None = None
    """By the seed of an NKey (it begins with SU)."""
    creds: TextOrReference | None = None
    """By a user's JWT and seed, as `nsc` writes them: the path of the file, relative to the pipeline file, read for
    every connection; or a reference to its contents: `{env: NAME}`, `{file: PATH}`, or a key of a Kubernetes Secret."""

    @classmethod
    def shape_problems(cls, data: Mapping[str, Any]) -> Iterator[ShapeProblem]:
        """Requires exactly one kind of credentials."""
        yield from exactly_one(data, ("basic", "token", "nkey", "creds"), cls.noun)

    def needs(self) -> Iterator[Needed]:
        for name, given in (("nkey", self.nkey), ("creds", self.creds)):
            if given is not None:
                yield Needed("nkeys", "millstream[nkeys]", (name,))


class NatsServer(SpecModel):
    """A server, or several of a cluster, and the credentials for it."""

    noun = "a NATS connection"

    url: Annotated[Text, After(_checked_url)]
    """The server, `nats://host:port`, or `tls://host:port`; several of a cluster, separated by commas."""
    auth: NatsAuth | None = None
    """Credentials. Default: none."""
    tls: ServerTls | None = None
    """Encrypts the connection, and says which certificates are accepted. Default: those of the authorities of the
    system if `url` says `tls://`, else no encryption."""
    timeout_s: PositiveDuration = field(default=10.0, alias="timeout")
    """How long a connection or an answer may take. Then it is tried again. Duration, default 10s."""

    @property
    def encrypted(self) -> bool:
        """Whether the connection uses TLS."""
        return self.tls is not None or self.url.startswith("tls:")

    def notes(self, path: Path) -> Iterator[tuple[Path, str]]:
        """Notes on a connection that sends secrets over the network unencrypted."""
        hosts = [urlsplit(server.strip()).hostname or "" for server in self.url.split(",")]
        if self.auth is not None and not self.encrypted and not all(map(stays_on_this_machine, hosts)):
            yield (*path, "url"), "credentials and records are sent to the server unencrypted; `tls: {}` encrypts them"


class NatsSource(NatsServer):
    """Receives messages of NATS subjects. NATS does not store them."""

    noun = "a nats source"

    subject: Annotated[Text, After(checked_filter)]
    """The subject, or a pattern such as `orders.*`. Several are separated by commas; without `queue`, one lane receives
    each."""
    queue: Text | None = None
    """Name of a queue group: the server gives each message to one of its members, and every lane is a member. Default:
    none; each lane has its own subjects."""

    def relation_problems(self) -> Iterator[ShapeProblem]:
        """Rejects patterns that would deliver a message twice."""
        yield from super().relation_problems()
        yield from overlaps(self.subjects, ("subject",))

    @property
    def subjects(self) -> Sequence[str]:
        """Patterns of the subjects."""
        return filters_of(self.subject)


class NatsSink(NatsServer):
    """Publishes records to a NATS subject. NATS does not store them."""

    noun = "a nats sink"

    subject: Annotated[Text, After(checked_subject)]
    """The subject."""
