"""The file that says how to reach a broker: who one is to it, and how the connection is encrypted.

    user: orders-map
    password: {file: map.password}
    tls: {ca: ca.pem}

Secrets are in the environment or in separate files, so the file itself may be read by others; nothing of it comes from
a command line, which every user of a machine can read. Above it: code that is given such a file. Below it: what a
connection is made with.
"""

from collections.abc import Iterator, Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from millstream import codes
from millstream.buffers.access_files import TlsFiles, check_url, read_access, secret, tls_context
from millstream.errors import UserError
from millstream.nats.access import INBOX, BrokerAccess
from millstream.spec.references import Reference, TextOrReference, referenced_files
from millstream.spec.values import ShapeProblem, SpecModel, Text


class AccessFile(SpecModel):
    """How to reach a broker."""

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
    """File with a user's JWT and seed, as `nsc` writes it; relative to this file, read at every connection."""
    tls: TlsFiles | None = None
    """Encrypts the connection, and says whose certificates count; `{}` for those of the system."""
    inbox: Text = INBOX
    """What the subjects that answers come to begin with: a user's own, where the broker grants no other."""

    monitor: Text | None = None
    """URL of its monitoring endpoint, for a broker that does not tell its durability over NATS."""

    @classmethod
    def shape_problems(cls, data: Mapping[str, Any]) -> Iterator[ShapeProblem]:
        """One way to say who one is."""
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
    """How to reach the broker at `url`, which the file at `path` says; without a file: without credentials.

    Raises `UserError` for a URL with a password in it, and for a file that cannot be used; no message holds a secret.
    """
    for server in url.split(","):
        check_url(server, ("nats", "tls"))
    if path is None:
        return BrokerAccess(url)
    written = read_access(path, AccessFile)
    base = path.absolute().parent

    creds = None if written.creds is None else base / written.creds
    if creds is not None:
        _check_readable(creds, f"{path}: creds")
    if creds is not None or written.nkey is not None:
        _check_nkeys(path)
    return BrokerAccess(
        url=url,
        user=secret(path, "user", written.user),
        password=secret(path, "password", written.password),
        token=secret(path, "token", written.token),
        nkey_seed=secret(path, "nkey", written.nkey),
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


def _check_readable(path: Path, what: str) -> None:
    try:
        with path.open("rb"):
            pass
    except OSError as error:
        raise UserError(codes.BROKER_ACCESS_FILE, f"{what}: {path} cannot be read: {error.strerror}") from error


def _check_nkeys(path: Path) -> None:
    # The client needs it to sign.
    if find_spec("nkeys") is None:
        raise UserError(
            codes.EXTRA_NEEDED,
            f"{path}: an NKey or a credentials file needs a package that is not installed here: "
            "`pip install 'millstream[nkeys]'`",
        )
