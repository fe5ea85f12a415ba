"""The `http` source, as pipeline files name it."""

from __future__ import annotations

import ipaddress
from collections.abc import Iterator
from contextlib import AbstractAsyncContextManager
from typing import TYPE_CHECKING, Annotated

from millstream import codes
from millstream.limits import HTTP_CLIENT_CONNECTIONS_MAX, HTTP_CONNECTIONS_MAX, IDS_MAX
from millstream.spec.connectors import Guarantee, GuaranteeId, IdBounds, IdsCount, Place
from millstream.spec.problems import Finding, Path
from millstream.spec.references import Secret
from millstream.spec.rules import Strict
from millstream.spec.tls import stays_on_this_machine
from millstream.spec.values import (
    Flag,
    PositiveCount,
    PositiveDuration,
    ShapeProblem,
    SpecModel,
    Text,
    as_duration,
    field,
)
from millstream_reader.connector import SourceConnector, SourceOwner

if TYPE_CHECKING:
    from millstream_reader.source import SourceLane


HTTP_PORT = 8090

Port = Annotated[int, Strict(ge=0, le=65535)]


def _is_reached_from_outside(host: str) -> bool:
    """Whether an address is not on this machine; a name is checked when it is resolved."""
    try:
        return not ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


class HttpAuth(SpecModel):
    """The bearer token that callers must send."""

    noun = "auth"

    token: Secret
    """The token: `{env: NAME}`, `{file: PATH}`, or a key of a Kubernetes Secret. It may contain several tokens, one per
    line, each of which is valid. A file is read again when it changes."""


class HttpTls(SpecModel):
    """Certificates of a server, as PEM. Files are read again when they change."""

    noun = "tls"

    certificate: Secret
    """The certificate, followed by those between it and its authority: `{file: PATH}`, `{env: NAME}`, or a key of a
    Kubernetes Secret."""
    key: Secret
    """Its private key, without a passphrase."""
    client_ca: Secret | None = None
    """Certificates of the authorities that have to issue the certificates of clients. Default: clients need no
    certificate."""


class HttpSource(SpecModel):
    """Accepts records by POST; answers 200 once they are committed."""

    noun = "an http source"

    host: Text = "127.0.0.1"
    """Address to listen on."""
    port: Port = HTTP_PORT
    """Port of lane 0; lane n uses the n-th port after it. With 0, each lane takes a free port."""
    auth: HttpAuth | None = None
    """Bearer token. Default: none is required."""
    tls: HttpTls | None = None
    """HTTPS, with these certificates. Default: HTTP."""
    allow_unauthenticated: Flag = False
    """Listen on an address that other machines can reach, although neither `auth` nor `tls.clientCa` identifies
    senders."""
    connections_max: Annotated[int, Strict(ge=2)] = field(default=HTTP_CONNECTIONS_MAX, alias="connectionsMax")
    """Maximum number of connections to one lane; further ones are answered 503. At most half of the files that the
    process may open."""
    client_connections_max: PositiveCount = field(default=HTTP_CLIENT_CONNECTIONS_MAX, alias="clientConnectionsMax")
    """Maximum number of connections of one sender: an address (with IPv6, a network of 64 bits) with a token and a
    certificate. At most half of `connectionsMax`; further ones are answered 429. Raise it if senders come through a
    proxy. As many connections of an address that have shown nothing may be open; then the oldest gives way."""
    id_ttl_s: Annotated[PositiveDuration, Strict(ge=1)] = field(default=24 * 3600.0, alias="idTtl")
    """How long the id of a record is remembered, so that sending it again has no effect. Duration
    of at least 1s, default 24h."""
    ids_max: IdsCount = field(default=IDS_MAX, alias="idsMax")
    """Maximum number of record ids that are remembered, over all partitions; beyond it records with new ids are
    answered 503. The broker reserves 48 bytes for each id; a remembered id takes 30 bytes of memory."""
    buffer: PositiveCount = 500
    """Maximum number of records in unanswered requests; beyond it the answer is 429."""

    @property
    def asks_who(self) -> bool:
        """Whether senders have to authenticate."""
        return self.auth is not None or (self.tls is not None and self.tls.client_ca is not None)

    def relation_problems(self) -> Iterator[ShapeProblem]:
        """Prevents a source from listening to the network by accident."""
        if self.asks_who and self.allow_unauthenticated:
            what = "`allowUnauthenticated` has no effect when senders have to authenticate"
            yield ShapeProblem(codes.FIELDS_CONFLICT, ("allowUnauthenticated",), what, "only one of them")
        if not self.asks_who and not self.allow_unauthenticated and _is_reached_from_outside(self.host):
            what = f"other machines can reach {self.host}, and senders do not have to authenticate"
            yield ShapeProblem(
                codes.HTTP_SOURCE_OPEN, ("host",), what, "`auth`, `tls.clientCa`, or `allowUnauthenticated: true`"
            )


class _Http(SourceConnector[HttpSource]):
    model = HttpSource
    meaning = "Records sent over HTTP."
    promise = Guarantee(
        GuaranteeId.RECORD_IDS,
        "exactly once for records that are sent with an id, as long as `idTtl` remembers it; at least once without one",
    )
    strangers = True
    extracts = True

    def bounded(self, settings: HttpSource) -> bool | None:
        return False

    def id_bounds(self, settings: HttpSource) -> IdBounds | None:
        return IdBounds(settings.id_ttl_s, settings.ids_max)

    def guarantee(self, settings: HttpSource) -> Guarantee:
        sentence = (
            "exactly once for records that are sent with an id, which is remembered for "
            f"{as_duration(settings.id_ttl_s)}; at least once without one"
        )
        return Guarantee(GuaranteeId.RECORD_IDS, sentence)

    def address(self, settings: HttpSource, partition: int) -> tuple[str, int] | None:
        return (settings.host, settings.port + partition) if settings.port else None

    def local_findings(self, settings: HttpSource, place: Place) -> Iterator[Finding]:
        if place.replicas > 1 and settings.port != 0:
            what = f"{place.replicas} processes cannot listen on the same port of this machine"
            yield Finding(codes.PLACE_TAKEN, (*place.vertex_path, "replicas"), what, "`replicas: 1` or `port: 0`")

    def notes(self, settings: HttpSource, path: Path) -> Iterator[tuple[Path, str]]:
        """Warns about tokens that are sent unencrypted over the network."""
        if settings.auth is not None and settings.tls is None and not stays_on_this_machine(settings.host):
            what = (
                f"senders send their token unencrypted to {settings.host}; set `tls`, or put a proxy in front, to "
                "encrypt it"
            )
            yield (*path, "auth"), what

    def open(self, settings: HttpSource, owner: SourceOwner) -> AbstractAsyncContextManager[SourceLane]:
        from millstream_connectors.http.source.lane import open_http
        from millstream_connectors.http.source.plan import http_plan

        plan = http_plan(settings, owner.base_dir, owner.lane, owner.clock)
        where = (owner.lane, owner.partitions, owner.position)
        return open_http(plan, owner.extraction, *where, clock=owner.clock, seen=owner.seen)


HTTP = _Http()
