"""How the connection to a program behind an address is encrypted, and which addresses stay on this machine. Pure."""

from __future__ import annotations

import ipaddress
from collections.abc import Iterator, Mapping
from typing import Any
from urllib.parse import urlsplit

from millstream import codes
from millstream.spec.references import Secret
from millstream.spec.values import ShapeProblem, SpecModel, Text


class ServerTls(SpecModel):
    """TLS to an external server. Certificates and keys are PEM, and are read when the vertex starts."""

    noun = "tls"

    ca: Secret | None = None
    """Certificates of the authorities that are trusted to sign the server's: `{file: PATH}`, `{env: NAME}`, or a key of
    a Kubernetes Secret. Default: those of the system."""
    certificate: Secret | None = None
    """The vertex's own certificate, for servers that require one."""
    key: Secret | None = None
    """Its private key, without a passphrase."""

    @classmethod
    def shape_problems(cls, data: Mapping[str, Any]) -> Iterator[ShapeProblem]:
        """Requires a certificate and its key together."""
        yield from whole_pair(data)


class ProgramTls(ServerTls):
    """TLS to a program behind an `address`. Certificates and keys are PEM, and are read when the vertex starts."""

    ca: Secret | None = None
    """Certificates of the authorities that are trusted to sign the program's: `{file: PATH}`, `{env: NAME}`, or a key
    of a Kubernetes Secret. Default: those that gRPC includes."""
    certificate: Secret | None = None
    """The vertex's own certificate, for a program that requires one."""
    server_name: Text | None = None
    """The name in the program's certificate, if it differs from the host in `address`."""


def whole_pair(data: Mapping[str, Any]) -> Iterator[ShapeProblem]:
    """A problem for a certificate without its key, and the reverse."""
    if (data.get("certificate") is None) != (data.get("key") is None):
        yield ShapeProblem(
            codes.FIELDS_CONFLICT, (), "`certificate` and `key` belong together", "both of them, or neither"
        )


def is_open(url: str) -> bool:
    """Whether what is sent to an HTTP server at this URL crosses the network unencrypted."""
    parts = urlsplit(url)
    return parts.scheme == "http" and not stays_on_this_machine((parts.hostname or "").lower())


def stays_on_this_machine(host: str) -> bool:
    """Whether data for a host (a name, or an address without brackets) stays on this machine."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost" or host.endswith(".localhost")
