"""The settings of the `http` source and sink, as pipeline files have them. Pure."""

from __future__ import annotations

import ipaddress
from collections.abc import Iterator
from typing import Annotated, Literal

from millstream import codes
from millstream.limits import HTTP_CLIENT_CONNECTIONS_MAX, HTTP_CONNECTIONS_MAX, IDS_MAX
from millstream.spec.connectors import IdsCount
from millstream.spec.problems import Path
from millstream.spec.references import Secret, TextOrReference
from millstream.spec.tls import stays_on_this_machine
from millstream.spec.values import (
    After,
    Flag,
    PositiveCount,
    PositiveDuration,
    Quantity,
    ShapeProblem,
    SpecModel,
    Strict,
    Text,
    field,
)
from millstream_connectors.shared.web.settings import HTTP as SCHEMES
from millstream_connectors.shared.web.settings import WebServer, url_check


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
    port: Annotated[int, Strict(ge=0, le=65535)] = 8090
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

    def notes(self, path: Path) -> Iterator[tuple[Path, str]]:
        """Warns about tokens that are sent unencrypted over the network."""
        if self.auth is not None and self.tls is None and not stays_on_this_machine(self.host):
            what = (
                f"senders send their token unencrypted to {self.host}; set `tls`, or put a proxy in front, to "
                "encrypt it"
            )
            yield (*path, "auth"), what


class HttpBatch(SpecModel):
    """How many records go into one request."""

    noun = "a batch"

    max_records: PositiveCount = 1
    """Records in one request. 1 sends the value as the body; more send one value per line."""
    max_bytes: Quantity = 1 << 20
    """Bytes of one request's body; a larger record is sent alone. Default 1 MiB."""


class HttpSink(WebServer):
    """Sends records by HTTP, with a key that is the same on every retry."""

    noun = "an http sink"

    url: Annotated[TextOrReference, After(url_check(SCHEMES))]
    """URL to send to, or a reference to it: `{env: NAME}` or `{file: PATH}`."""
    method: Literal["POST", "PUT", "PATCH"] = "POST"
    """HTTP method."""
    batch: HttpBatch = HttpBatch()
    """How many records go into one request."""
    idempotency_header: Text = "Idempotency-Key"
    """Header that carries the key."""
