"""The file that says how to reach a broker: who one is to it, and how the connection is encrypted.

    user: orders-map
    password: {file: map.password}
    tls: {ca: ca.pem}

Secrets stand in the environment or in files of their own, so the file itself may be read by others; nothing of it
comes from a command line, which every user of a machine can read. Above it: whoever is given such a file. Below it:
what a connection is made with.
"""

import ssl
from collections.abc import Iterator, Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from pydantic import ValidationError

from millstream.buffers.jetstream.access import INBOX, BrokerAccess
from millstream.errors import UserError
from millstream.spec import yaml_text
from millstream.spec.faults import Finding, path_text
from millstream.spec.references import Reference, TextOrReference, placeholders, referenced_files, resolve
from millstream.spec.values import ShapeFault, SpecModel, Text
from millstream.spec.wording import findings_of

FILE_BYTES_MAX = 64 * 1024
"""Largest file."""


class TlsFiles(SpecModel):
    """Certificates, as PEM files; paths are relative to the access file."""

    noun = "`tls`"

    ca: Text | None = None
    """Certificates of the authorities that the server's may come from; without it those of the system."""
    certificate: Text | None = None
    """The client's own certificate, where the server asks for one."""
    key: Text | None = None
    """Its private key, without a passphrase."""
    server_name: Text | None = None
    """The name that the server's certificate is for, where the URL has another."""

    @classmethod
    def shape_faults(cls, data: Mapping[str, Any]) -> Iterator[ShapeFault]:
        """A certificate and its key."""
        if (data.get("certificate") is None) != (data.get("key") is None):
            yield ShapeFault((), "`certificate` and `key` belong together", "both of them, or neither")


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

    @classmethod
    def shape_faults(cls, data: Mapping[str, Any]) -> Iterator[ShapeFault]:
        """One way to say who one is."""
        if (data.get("user") is None) != (data.get("password") is None):
            yield ShapeFault((), "`user` and `password` belong together", "both of them, or another credential")
        ways = [name for name in ("user", "token", "nkey", "creds") if data.get(name) is not None]
        if len(ways) > 1:
            listed = ", ".join(f"`{way}`" for way in ways)
            yield ShapeFault((), f"it has {listed} together", "one way to say who connects")


def load_access(path: Path | None, url: str, monitor_url: str | None = None) -> BrokerAccess:
    """How to reach the broker at `url`, which the file at `path` says; without a file: without credentials.

    Raises `UserError` for a URL with a password in it, and for a file that cannot be used; no message holds a secret.
    """
    for server in url.split(","):
        _check_url(server)
    if path is None:
        return BrokerAccess(url, monitor_url=monitor_url)
    written = _read(path)
    base = path.absolute().parent

    def secret(name: str, value: object) -> str | None:
        return None if value is None else resolve(value, base, f"{path}: {name}")

    creds = None if written.creds is None else base / written.creds
    if creds is not None:
        _check_readable(creds, f"{path}: creds")
    if creds is not None or written.nkey is not None:
        _check_nkeys(path)
    return BrokerAccess(
        url=url,
        user=secret("user", written.user),
        password=secret("password", written.password),
        token=secret("token", written.token),
        nkey_seed=secret("nkey", written.nkey),
        credentials_file=creds,
        tls=None if written.tls is None else _tls_context(written.tls, base, path),
        tls_name=None if written.tls is None else written.tls.server_name,
        inbox=written.inbox,
        monitor_url=monitor_url,
    )


def files_of(path: Path) -> list[Path]:
    """The access file and the files of secrets that it names."""
    written = _read(path)
    base = path.absolute().parent
    named = [written.creds, None if written.tls is None else written.tls.key]
    return [path, *referenced_files(written, base), *(base / name for name in named if name is not None)]


def _check_url(server: str) -> None:
    parts = urlsplit(server if "//" in server else f"nats://{server}")
    if parts.username is not None or parts.password is not None:
        raise UserError(
            f"the URL of the broker at {parts.hostname} has a user or password in it, which every user of this machine "
            "can read off the command line; put them into a file and name it with --nats-access (deploy/README.md)"
        )
    try:
        valid = parts.scheme in ("nats", "tls") and bool(parts.hostname) and (parts.port is None or parts.port > 0)
    except ValueError:
        valid = False
    if not valid:
        raise UserError(f"{server!r} is no URL of a broker; expected nats://HOST:PORT, or tls://HOST:PORT")


def _read(path: Path) -> AccessFile:
    try:
        with path.open("rb") as stream:
            data = stream.read(FILE_BYTES_MAX + 1)
    except OSError as error:
        raise UserError(f"the broker's access file {path} cannot be read: {error.strerror}") from error
    if len(data) > FILE_BYTES_MAX:
        raise UserError(f"the broker's access file {path} is larger than {FILE_BYTES_MAX} bytes")
    try:
        document = yaml_text.parse(data.decode("utf-8-sig"))
    except UnicodeDecodeError as error:
        raise UserError(f"the broker's access file {path} is not UTF-8") from error
    except yaml_text.UnreadableError as problem:
        raise UserError(f"the broker's access file {path}: {problem.fault.what}") from None
    findings = [Finding(fault.path, fault.what, fault.expected) for fault in document.faults]
    if not isinstance(document.value, dict):
        raise UserError(f"the broker's access file {path} is not a mapping, such as `user: NAME`")
    findings += placeholders(document.value)
    try:
        written = AccessFile.model_validate(document.value)
    except ValidationError as failure:
        findings += findings_of(failure, document.value, set())
    if findings:
        raise UserError("\n".join(f"{path}: {_text(finding)}" for finding in findings))
    return written


def _text(finding: Finding) -> str:
    place = path_text(finding.path)
    return f"{place + ': ' if place else ''}{finding.what} (expected: {finding.expected})"


def _check_readable(path: Path, what: str) -> None:
    try:
        with path.open("rb"):
            pass
    except OSError as error:
        raise UserError(f"{what}: {path} cannot be read: {error.strerror}") from error


def _check_nkeys(path: Path) -> None:
    # The client needs it to sign.
    if find_spec("nkeys") is None:
        raise UserError(
            f"{path}: an NKey or a credentials file needs a package that is not installed here: "
            "`pip install 'millstream[nkeys]'`"
        )


def _tls_context(files: TlsFiles, base: Path, path: Path) -> ssl.SSLContext:
    try:
        ca = None if files.ca is None else str(base / files.ca)
        context = ssl.create_default_context(ssl.Purpose.SERVER_AUTH, cafile=ca)
        if files.certificate is not None and files.key is not None:
            # Asks nobody for a passphrase: an encrypted key is refused.
            context.load_cert_chain(base / files.certificate, base / files.key, password=lambda: "")
    except (OSError, ssl.SSLError, ValueError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise UserError(f"{path}: tls: the certificates cannot be used: {reason}; they are PEM files") from error
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    return context
