"""Certificates for the brokers of tests and benchmarks, created by the `openssl` program.

Above it: the test server, and benchmarks with TLS. Each certificate is its own authority, so a client that trusts it
trusts nothing else.
"""

from __future__ import annotations

import ssl
import subprocess
from dataclasses import dataclass
from pathlib import Path

from millstream import codes
from millstream.errors import UserError
from millstream.files import make_private_directories

_DAYS = "2"


@dataclass(frozen=True, slots=True)
class Certificate:
    """A certificate and its private key, as PEM files."""

    certificate: Path
    key: Path


def make_certificate(directory: Path, name: str = "127.0.0.1", file: str = "server") -> Certificate:
    """Create `<file>.pem` and `<file>.key` for an address or a host name. Raises `UserError` without `openssl`."""
    make_private_directories(directory)
    made = Certificate(directory / f"{file}.pem", directory / f"{file}.key")
    kind = "IP" if name.replace(".", "").isdigit() else "DNS"
    command = [
        *("openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes"),
        *("-days", _DAYS, "-subj", f"/CN={name}", "-addext", f"subjectAltName={kind}:{name}"),
        *("-keyout", str(made.key), "-out", str(made.certificate)),
    ]
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False)
    except FileNotFoundError as error:
        raise UserError(
            codes.CERTIFICATES, "certificates are created with the program openssl, which is not installed here"
        ) from error
    if done.returncode:
        raise UserError(codes.CERTIFICATES, f"openssl did not create a certificate: {done.stderr.strip()}")
    made.key.chmod(0o600)
    return made


def trusting(certificate: Path) -> ssl.SSLContext:
    """The context of a client that accepts only the server with that certificate."""
    return ssl.create_default_context(ssl.Purpose.SERVER_AUTH, cafile=str(certificate))
