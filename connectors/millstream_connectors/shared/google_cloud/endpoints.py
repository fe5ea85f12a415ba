"""The address of a service of Google Cloud in a pipeline file: `https://host`, or `http://host:port` for an emulator.

Above it: the settings of connectors. Below it: the rules for addresses.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from urllib.parse import urlsplit

from millstream import codes
from millstream.spec.addresses import address_check
from millstream.spec.problems import Path
from millstream.spec.references import Secret
from millstream.spec.tls import stays_on_this_machine
from millstream.spec.values import ShapeProblem


def endpoint_check(what: str) -> Callable[[str], str]:
    """Checks an endpoint; `what` names it in messages."""
    return address_check(
        what, ("http", "https"), "https://host, or http://host:port for an emulator", path=("", "/").__contains__
    )


def is_encrypted(endpoint: str) -> bool:
    """Whether the connection is encrypted."""
    return urlsplit(endpoint).scheme == "https"


def address_of(endpoint: str) -> str:
    """The `host:port` to which requests are sent."""
    parts = urlsplit(endpoint)
    host = f"[{parts.hostname}]" if ":" in (parts.hostname or "") else parts.hostname
    return f"{host}:{parts.port or (443 if is_encrypted(endpoint) else 80)}"


def credential_problems(credentials: Secret | None, endpoint: str) -> Iterator[ShapeProblem]:
    """Rejects credentials that would be sent unencrypted."""
    if credentials is not None and not is_encrypted(endpoint):
        what = "`credentials` are not sent over a connection that is not encrypted"
        yield ShapeProblem(codes.FIELDS_CONFLICT, ("credentials",), what, "an endpoint with https://, or neither")


def endpoint_notes(endpoint: str, path: Path) -> Iterator[tuple[Path, str]]:
    """Notes about the connection, for `validate`. `path`: of the settings."""
    host = urlsplit(endpoint).hostname or ""
    if not is_encrypted(endpoint) and not stays_on_this_machine(host.lower()):
        yield (*path, "endpoint"), f"the records go to {host} unencrypted; https:// encrypts them"
