"""What a client of a Pulsar cluster says about who connects.

Above it: the link, and what asks the web service. Below it: the settings, and references to secrets.
"""

from __future__ import annotations

import base64
from dataclasses import dataclass, field
from pathlib import Path

from millstream.pulsar.settings import PulsarCluster
from millstream.spec.references import resolve


@dataclass(frozen=True, slots=True)
class Credentials:
    """Who connects, with secrets that were read."""

    secret: str = field(repr=False)
    """The token, or the user's password."""
    user: str | None = None
    """None with a token."""

    @property
    def method(self) -> str:
        """Its name in the protocol."""
        return "token" if self.user is None else "basic"

    @property
    def data(self) -> str:
        """As the protocol sends it."""
        return self.secret if self.user is None else f"{self.user}:{self.secret}"

    @property
    def header(self) -> str:
        """The header `Authorization` of a request to the web service."""
        if self.user is not None:
            return f"Basic {base64.b64encode(self.data.encode()).decode()}"
        return f"Bearer {self.data}"


def credentials_of(cluster: PulsarCluster, base_dir: Path, where: str) -> Credentials | None:
    """None if the cluster is not told who connects. Raises `UserError` for a secret that cannot be read."""
    auth = cluster.auth
    if auth is None:
        return None
    if auth.basic is not None:
        user = resolve(auth.basic.user, base_dir, f"{where}: auth.basic.user")
        password = resolve(auth.basic.password, base_dir, f"{where}: auth.basic.password")
        return Credentials(password, user)
    assert auth.token is not None, "the settings have one of both"
    return Credentials(resolve(auth.token, base_dir, f"{where}: auth.token"))
