"""What a client of a Pulsar cluster says about who connects.

Above it: the link, and what asks the web service. Below it: the settings, references to secrets, and the issuer of
tokens.
"""

from __future__ import annotations

import base64
from dataclasses import dataclass, field
from pathlib import Path

from millstream.spec.references import resolve
from millstream_connectors.pulsar.settings import PulsarCluster
from millstream_connectors.shared.oauth2.issuer import Issuer, open_issuer


@dataclass(frozen=True, slots=True)
class Credentials:
    """Who connects, with secrets that were read."""

    secret: str | None = field(default=None, repr=False)
    """The token, or the user's password. None if the client's certificate says who connects."""
    user: str | None = None
    """None with a token."""

    @property
    def method(self) -> str:
        """Its name in the protocol."""
        if self.secret is None:
            return "tls"
        return "token" if self.user is None else "basic"

    @property
    def data(self) -> str:
        """As the protocol sends it."""
        secret = self.secret or ""
        return secret if self.user is None else f"{self.user}:{secret}"

    @property
    def header(self) -> str | None:
        """The header `Authorization` of a request to the web service; None for no header."""
        if self.secret is None:
            return None
        if self.user is not None:
            return f"Basic {base64.b64encode(self.data.encode()).decode()}"
        return f"Bearer {self.data}"


def identity_of(cluster: PulsarCluster, base_dir: Path, where: str) -> Credentials | Issuer | None:
    """Who connects, or the issuer that gives tokens for it; None if the cluster is not told. Raises `UserError` for a
    secret that cannot be read."""
    auth = cluster.auth
    if auth is None:
        return None if cluster.tls is None or cluster.tls.certificate is None else Credentials()
    if auth.basic is not None:
        user = resolve(auth.basic.user, base_dir, f"{where}: auth.basic.user")
        return Credentials(resolve(auth.basic.password, base_dir, f"{where}: auth.basic.password"), user)
    if auth.oauth2 is not None:
        return open_issuer(auth.oauth2, base_dir, where)
    assert auth.token is not None, "the settings have one of them"
    return Credentials(resolve(auth.token, base_dir, f"{where}: auth.token"))


def credentials_now(who: Credentials | Issuer | None, timeout_s: float) -> Credentials | None:
    """Who connects now. Asks an issuer if its last token is too old, and blocks then. Errors: those of
    `Issuer.token`."""
    return Credentials(who.token(timeout_s)) if isinstance(who, Issuer) else who
