"""Encryption of connections to external servers, as the pipeline file configures it.

Above it: clients that connect. Below it: the references of `ServerTls`, and Python's ssl.
"""

from __future__ import annotations

import os
import ssl
from pathlib import Path

from millstream import codes
from millstream.errors import UserError
from millstream.spec.references import resolve
from millstream.spec.tls import ServerTls


def context_of(tls: ServerTls, base_dir: Path, where: str) -> ssl.SSLContext:
    """The TLS context of a client. Raises `UserError` for a reference that cannot be resolved, or for text that is not
    PEM."""
    authorities = None if tls.ca is None else resolve(tls.ca, base_dir, f"{where}: tls.ca")
    try:
        context = ssl.create_default_context(cadata=authorities)
        if tls.certificate is not None and tls.key is not None:
            parts = [resolve(tls.certificate, base_dir, f"{where}: tls.certificate")]
            parts.append(resolve(tls.key, base_dir, f"{where}: tls.key"))
            _load(context, "\n".join(parts).encode())
    except (OSError, ValueError) as error:
        what = (
            f"{where}: `tls` has a certificate or a key that cannot be used: {error}. Both must be PEM, and the key "
            "must not have a passphrase"
        )
        raise UserError(codes.CERTIFICATES, what) from error
    return context


def _load(context: ssl.SSLContext, chain: bytes) -> None:
    # Python reads it only from a file. This file is in memory, and only this process has it.
    descriptor = os.memfd_create("certificate")
    try:
        os.write(descriptor, chain)
        context.load_cert_chain(f"/proc/self/fd/{descriptor}")
    finally:
        os.close(descriptor)
