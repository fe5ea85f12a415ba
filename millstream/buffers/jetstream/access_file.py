"""The access file of a broker: the credentials for it, and the encryption of the connection.

    user: orders-map
    password: {file: map.password}
    tls: {ca: ca.pem}

Secrets are in the environment or in separate files, so other users may read the access file. Nothing in it comes from
the command line, which every user of a machine can read. Above it: code that gets the path of an access file. Below it:
the values from which a connection is opened.
"""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from millstream import codes
from millstream.buffers.access_files import TlsFiles, check_url, read_access, secret, tls_context
from millstream.errors import UserError
from millstream.nats.access import INBOX, BrokerAccess
from millstream.nats.signing import checked_credentials, checked_seed, read_credentials
from millstream.spec.references import Reference, TextOrReference, referenced_files
from millstream.spec.values import ShapeProblem, SpecModel, Text


class AccessFile(SpecModel):
    """The contents of the access file of a broker."""

    noun = "a broker's access file"

    user: TextOrReference | None = None
    """Name of the user."""
    password: Reference | None = None
    """The user's password."""
    token: Reference | None = None
    """The token of a server that has one for all its clients."""
    nkey: Reference | None = None
    """The seed of an NKey (it begins with SU): the file that `nsc` or `nk` wrote."""
    creds: Text | None = None
    """File with a user's JWT and seed, as `nsc` writes it; relative to this file, read for every connection."""
    tls: TlsFiles | None = None
    """Encrypts the connection, and says which certificates are accepted; `{}` accepts those of the system's
    authorities."""
    inbox: Text = INBOX
    """Prefix of the subjects for answers. Needed if the broker gives each user a separate one."""

    monitor: Text | None = None
    """URL of the broker's monitoring endpoint, if the broker does not report its settings over NATS."""

    @classmethod
    def shape_problems(cls, data: Mapping[str, Any]) -> Iterator[ShapeProblem]:
        """Allows at most one kind of credentials."""
        if (data.get("user") is None) != (data.get("password") is None):
            yield ShapeProblem(
                codes.FIELDS_CONFLICT,
                (),
                "`user` and `password` belong together",
                "both of them, or another credential",
            )
        ways = [name for name in ("user", "token", "nkey", "creds") if data.get(name) is not None]
        if len(ways) > 1:
            listed = ", ".join(f"`{way}`" for way in ways)
            yield ShapeProblem(
                codes.FIELDS_CONFLICT,
                (),
                f"it has more than one kind of credentials: {listed}",
                "one kind of credentials",
            )


def load_access(path: Path | None, url: str) -> BrokerAccess:
    """Access to the broker at `url`, with the credentials from the file at `path`, if there is one.

    Raises `UserError` for a URL that contains a password, and for an unusable file. No message contains a secret.
    """
    for server in url.split(","):
        check_url(server, ("nats", "tls"))
    if path is None:
        return BrokerAccess(url)
    written = read_access(path, AccessFile)
    base = path.absolute().parent

    creds = None if written.creds is None else base / written.creds
    if creds is not None:
        checked_credentials(_contents(creds, f"{path}: creds"), f"{path}: creds: {creds}", codes.BROKER_ACCESS_FILE)
    seed = secret(path, "nkey", written.nkey)
    if seed is not None:
        checked_seed(seed, f"{path}: nkey", codes.BROKER_ACCESS_FILE)
    return BrokerAccess(
        url=url,
        user=secret(path, "user", written.user),
        password=secret(path, "password", written.password),
        token=secret(path, "token", written.token),
        nkey_seed=seed,
        credentials_file=creds,
        tls=None if written.tls is None else tls_context(written.tls, base, path),
        tls_name=None if written.tls is None else written.tls.server_name,
        inbox=written.inbox,
        monitor_url=written.monitor,
    )


def files_of(path: Path) -> list[Path]:
    """The access file and the files of secrets that it names."""
    written = read_access(path, AccessFile)
    base = path.absolute().parent
    named = [written.creds, None if written.tls is None else written.tls.key]
    return [path, *referenced_files(written, base), *(base / name for name in named if name is not None)]


def _contents(path: Path, what: str) -> str:
    try:
        return read_credentials(path)
    except OSError as error:
        raise UserError(codes.BROKER_ACCESS_FILE, f"{what}: {path} cannot be read: {error.strerror}") from error
