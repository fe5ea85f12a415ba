"""How the connection to a program behind an address is encrypted, and which addresses stay on this machine. Pure."""

from __future__ import annotations

import ipaddress
from collections.abc import Iterator, Mapping
from typing import Any

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
        if (data.get("certificate") is None) != (data.get("key") is None):
            what = "`certificate` and `key` belong together"
            yield ShapeProblem(codes.FIELDS_CONFLICT, (), what, "both of them, or neither")


class ProgramTls(ServerTls):
    """TLS to a program behind an `address`. Certificates and keys are PEM, and are read when the vertex starts."""

    ca: Secret | None = None
    """Certificates of the authorities that are trusted to sign the program's: `{file: PATH}`, `{env: NAME}`, or a key
    of a Kubernetes Secret. Default: those that gRPC includes."""
    certificate: Secret | None = None
    """The vertex's own certificate, for a program that requires one."""
    server_name: Text | None = None
    """The name in the program's certificate, if it differs from the host in `address`."""


def stays_on_this_machine(host: str) -> bool:
    """Whether data for a host (a name, or an address without brackets) stays on this machine."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost" or host.endswith(".localhost")
