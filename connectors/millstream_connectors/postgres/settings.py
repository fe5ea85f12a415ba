"""How pipeline files name a PostgreSQL server and the things in it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path as FilePath
from typing import Annotated, Literal

from millstream import codes
from millstream.spec.problems import Finding, Path
from millstream.spec.references import Secret, TextOrReference, secret_in_file
from millstream.spec.rules import Strict
from millstream.spec.tls import stays_on_this_machine
from millstream.spec.values import PositiveDuration, ShapeProblem, SpecModel, Text, field

SslMode = Literal["disable", "prefer", "require", "verify-ca", "verify-full"]


class PostgresServer(SpecModel):
    """A database, and the role that connects to it."""

    noun = "a postgres connection"

    host: Text = "localhost"
    """Name or address of the server. A path that begins with `/` is the directory of its unix socket."""
    port: Annotated[int, Strict(ge=1, le=65535)] = 5432
    """Port of the server."""
    database: Text
    """Name of the database."""
    user: Text
    """Name of the role that connects."""
    password: TextOrReference | None = None
    """Its password, as `{env: NAME}` or `{file: PATH}`. Default: the one in `PGPASSWORD` or `~/.pgpass`, if any."""
    sslmode: SslMode = "prefer"
    """Whether the connection is encrypted: `disable`, `prefer` (if the server can), `require`, `verify-ca` (its
    certificate is checked) or `verify-full` (its host name, too). Only `verify-full` protects against an attacker
    between the two."""
    ssl_root_cert: TextOrReference | None = None
    """Certificates of the authorities that may have issued the server's, as PEM: a file, relative to the pipeline file,
    or a reference to its contents. Default: those of this system."""
    ssl_cert: Secret | None = None
    """The role's own certificate, as PEM, for servers that require one: `{file: PATH}`, `{env: NAME}`, or a key of a
    Kubernetes Secret. With `sslmode: require`, the server's certificate is then not checked, whatever
    `~/.postgresql/root.crt` says."""
    ssl_key: Secret | None = None
    """Its private key, without a passphrase."""
    timeout_s: PositiveDuration = field(default=60.0, alias="timeout")
    """Longest time for one transaction or one read. After it, the connection is closed and a new one is tried.
    Duration, default 1m."""

    def relation_problems(self) -> Iterator[ShapeProblem]:
        """Rejects certificates that `sslmode` does not use, and a certificate without its key."""
        if self.ssl_root_cert is not None and not self.sslmode.startswith("verify"):
            what = f"`sslRootCert` has no effect with `sslmode: {self.sslmode}`"
            yield ShapeProblem(codes.FIELDS_CONFLICT, ("sslRootCert",), what, "`sslmode: verify-full`")
        if (self.ssl_cert is None) != (self.ssl_key is None):
            what = "`sslCert` and `sslKey` belong together"
            yield ShapeProblem(codes.FIELDS_CONFLICT, (), what, "both of them, or neither")
        elif self.ssl_cert is not None and self.sslmode in ("disable", "prefer"):
            what = f"`sslCert` needs encryption, which `sslmode: {self.sslmode}` does not demand"
            yield ShapeProblem(codes.FIELDS_CONFLICT, ("sslCert",), what, "`sslmode: verify-full`")


def server_notes(settings: PostgresServer, path: Path) -> Iterator[tuple[Path, str]]:
    """What `validate` notes about the connection to a server."""
    if isinstance(settings.password, str):
        yield (*path, "password"), secret_in_file("password")
    if not settings.sslmode.startswith("verify") and not stays_on_this_machine(settings.host.lower()):
        if settings.host.startswith("/"):
            return
        what = f"`sslmode: {settings.sslmode}` does not verify that {settings.host} is the intended server"
        yield (*path, "sslmode"), f"{what}; `verify-full` does"


def server_findings(settings: PostgresServer, path: Path, base_dir: FilePath) -> Iterator[Finding]:
    """Files that the connection to a server needs and this machine does not have."""
    if isinstance(settings.ssl_root_cert, str) and not (base_dir / settings.ssl_root_cert).is_file():
        what = f"there is no file {base_dir / settings.ssl_root_cert}"
        yield Finding(codes.NO_SUCH_FILE, (*path, "sslRootCert"), what, "a file with certificates, as PEM")


def quoted(name: str) -> str:
    """A name, quoted for a statement."""
    return '"' + name.replace('"', '""') + '"'


def quoted_table(table: str) -> str:
    """`schema.table`, quoted for a statement."""
    return ".".join(map(quoted, table.split(".")))
