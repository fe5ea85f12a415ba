"""Encryption of connections to external servers, as the pipeline file configures it.

Above it: clients that connect. Below it: the references of `ServerTls`, and Python's ssl.
"""

from __future__ import annotations

import os
import re
import ssl
from pathlib import Path

from millstream import codes
from millstream.errors import UserError
from millstream.spec.references import resolve
from millstream.spec.tls import ServerTls

_NOT_ACCEPTED = re.compile(
    r"ALERT_(BAD_CERTIFICATE|UNKNOWN_CA|CERTIFICATE_\w+|UNSUPPORTED_CERTIFICATE)|CERTIFICATE_REQUIRED"
)


def context_of(tls: ServerTls, base_dir: Path, where: str) -> ssl.SSLContext:
    """The TLS context of a client. Raises `UserError` for a reference that cannot be resolved, or for text that is not
    PEM."""
    authorities = None if tls.ca is None else resolve(tls.ca, base_dir, f"{where}: tls.ca")
    try:
        context = trusting(authorities)
        if tls.certificate is not None and tls.key is not None:
            parts = [resolve(tls.certificate, base_dir, f"{where}: tls.certificate")]
            parts.append(resolve(tls.key, base_dir, f"{where}: tls.key"))
            load_chain(context, "\n".join(parts).encode())
    except (OSError, ValueError) as error:
        raise UserError(
            codes.CERTIFICATES,
            f"{where}: `tls` has a certificate or a key that cannot be used: {error}. Both must be PEM, and the key "
            "must not have a passphrase",
        ) from error
    return context


def is_not_accepted(said: str) -> bool:
    """Whether OpenSSL says with this text that a server does not accept the client's certificate, or wants one. With
    TLS 1.3 that is said after the handshake, instead of the first answer."""
    return _NOT_ACCEPTED.search(said) is not None


def no_passphrase() -> str:
    """In place of a prompt for the passphrase of a private key."""
    raise ValueError("the private key has a passphrase")


def trusting(authorities: str | None) -> ssl.SSLContext:
    """The context of a client that trusts authorities by their certificates (PEM); None for those of this system.
    Raises `OSError` or `ValueError` for text that is not PEM."""
    if authorities is None:
        return ssl.create_default_context()
    # Python takes ASCII only. Other characters are in comments.
    ascii_only = authorities.encode("ascii", "ignore").decode()
    if not ascii_only:
        # Python would take it for None.
        raise ValueError("there is no certificate in it")
    return ssl.create_default_context(cadata=ascii_only)


def file_in_memory(contents: bytes) -> int:
    """The descriptor of a file that only this process has, `/proc/self/fd/<descriptor>`, for clients that read
    certificates only from files. The caller closes it."""
    descriptor = os.memfd_create("certificate")
    os.write(descriptor, contents)
    return descriptor


def load_chain(context: ssl.SSLContext, chain: bytes) -> None:
    """Give a context its own certificate, followed by the key. Raises `OSError` for text that is not PEM, and
    `ValueError` for a key with a passphrase."""
    descriptor = file_in_memory(chain)
    try:
        context.load_cert_chain(f"/proc/self/fd/{descriptor}", password=no_passphrase)
    finally:
        os.close(descriptor)
