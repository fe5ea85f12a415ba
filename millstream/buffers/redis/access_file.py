"""The access file of a Redis or Valkey server: the credentials for it, and the encryption of the connection.

    user: orders
    password: {file: orders.password}
    tls: {ca: ca.pem}

Above it: the technology. Below it: the common part of all access files.
"""

from pathlib import Path
from urllib.parse import urlsplit

from millstream import codes
from millstream.buffers.access_files import TlsFiles, check_url, read_access, secret, tls_context
from millstream.buffers.redis.access import SCHEME, TLS_SCHEME, RedisAccess
from millstream.errors import UserError
from millstream.spec.references import Reference, TextOrReference, referenced_files
from millstream.spec.values import SpecModel


class AccessFile(SpecModel):
    """The contents of the access file of a server."""

    noun = "a broker's access file"

    user: TextOrReference | None = None
    """Name of the user. Default: the server's default user."""
    password: Reference | None = None
    """The user's password."""
    tls: TlsFiles | None = None
    """Encrypts the connection, and says which certificates are accepted; `{}` accepts those of the system's
    authorities."""


def load_access(path: Path | None, url: str) -> RedisAccess:
    """Access to the server at `url`, with the credentials from the file at `path`, if there is one.

    Raises `UserError` for a URL that contains a password, and for an unusable file. No message contains a secret.
    """
    check_url(url, (SCHEME, TLS_SCHEME))
    encrypted = urlsplit(url).scheme == TLS_SCHEME
    written = AccessFile() if path is None else read_access(path, AccessFile)
    if written.user is not None and written.password is None:
        raise UserError(
            codes.BROKER_ACCESS_FILE,
            f"{path}: it has a `user` but no `password` (expected: both of them, or a `password` alone)",
        )
    base = (path or Path()).absolute().parent
    tls = TlsFiles() if written.tls is None and encrypted else written.tls
    if path is None:
        return RedisAccess(url, tls=None if tls is None else tls_context(tls, base, Path(url)))
    return RedisAccess(
        url,
        user=secret(path, "user", written.user),
        password=secret(path, "password", written.password),
        tls=None if tls is None else tls_context(tls, base, path),
    )


def files_of(path: Path) -> list[Path]:
    """The access file and the files of secrets that it names."""
    written = read_access(path, AccessFile)
    base = path.absolute().parent
    key = [] if written.tls is None or written.tls.key is None else [base / written.tls.key]
    return [path, *referenced_files(written, base), *key]
