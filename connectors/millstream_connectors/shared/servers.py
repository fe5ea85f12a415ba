"""The settings that connections have in common: the server, the user, encryption and the time limit.

Above it: the settings of connectors. Below it: references, TLS and the problems of values.
"""

from collections.abc import Iterator, Mapping
from pathlib import Path as FilePath
from typing import ClassVar
from urllib.parse import urlsplit

from millstream.spec.problems import Path
from millstream.spec.references import Secret, TextOrReference, resolve, secret_in_file
from millstream.spec.tls import ServerTls, stays_on_this_machine
from millstream.spec.values import PositiveDuration, ShapeProblem, SpecModel, Text, field, without_effect


class BasicAuth(SpecModel):
    """A user and a password."""

    noun = "basic"

    user: TextOrReference
    """The user's name, or a reference to it."""
    password: Secret
    """The password: `{env: NAME}`, `{file: PATH}`, or a key of a Kubernetes Secret."""


class ServerByUrl(SpecModel):
    """A server, and the user that connects to it. A subclass checks the `url`."""

    ports: ClassVar[Mapping[str, int]]
    """The two schemes of `url`, without and with TLS in this order, and the default port of each."""

    url: Text
    """The server."""
    user: Text | None = None
    """Name of the user that connects. Default: none."""
    password: TextOrReference | None = None
    """Its password, as `{env: NAME}` or `{file: PATH}`. Default: none."""
    tls: ServerTls | None = None
    """Which certificates are accepted if `url` has the scheme for TLS. Default: those of the system's certificate
    authorities."""
    timeout_s: PositiveDuration = field(default=10.0, alias="timeout")
    """Longest time to wait for an answer. After it, the connection is closed and a new one is tried. Duration, default
    10s."""

    def relation_problems(self) -> Iterator[ShapeProblem]:
        """Rejects `tls` for an unencrypted connection."""
        if not self.encrypted:
            plain, encrypted = self.ports
            yield from without_effect({"tls": self.tls}, f"with {plain}://", f"{encrypted}://")

    @property
    def encrypted(self) -> bool:
        """Whether the connection uses TLS."""
        return urlsplit(self.url).scheme == tuple(self.ports)[1]

    @property
    def host(self) -> str:
        return urlsplit(self.url).hostname or ""

    @property
    def port(self) -> int:
        parts = urlsplit(self.url)
        return parts.port or self.ports[parts.scheme]

    def given_password(self, base_dir: FilePath, where: str) -> str | None:
        """The password itself; None if there is none. Raises `UserError` if it is not available."""
        if self.password is None:
            return None
        return resolve(self.password, base_dir, f"{where}: the password for {self.host}")

    def notes(self, path: Path) -> Iterator[tuple[Path, str]]:
        """Notes on secrets in the pipeline file, and on unencrypted ones on the network."""
        if isinstance(self.password, str):
            yield (*path, "password"), secret_in_file("password")
        if self.password is not None and not self.encrypted and not stays_on_this_machine(self.host.lower()):
            what = "the password and the records are sent to the server unencrypted"
            yield (*path, "url"), f"{what}; {tuple(self.ports)[1]}:// encrypts them"
