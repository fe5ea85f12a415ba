"""Addresses of servers in pipeline files: URLs without credentials.

Above it: the settings of connectors and formats. Below it: the problems of values.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection
from urllib.parse import SplitResult, urlsplit

from millstream import codes
from millstream.spec.values import problem

_SECRETS_BEGIN = re.compile(r"[?;#]")
"""Characters after which a URL has options, which may be a token."""


def without_secrets(written: str) -> str:
    """The part of an address that messages may show, because a user may have written credentials in it."""
    before, _, after = written.rpartition("@")
    if _SECRETS_BEGIN.search(before) is not None:
        # The `@` may belong to a user or to an option, so either side of it may be a secret.
        return "…"
    return _SECRETS_BEGIN.split(after, maxsplit=1)[0].strip()


def address_check(
    noun: str, schemes: Collection[str], expected: str, *, path: Callable[[str], bool]
) -> Callable[[str], str]:
    """A check that returns a URL unchanged, and raises a problem if it is not the address of `noun`.

    `path`: whether a path is valid. Credentials in a URL would be printed with it, so they are refused and omitted from
    the message.
    """

    def checked(written: str) -> str:
        try:
            parts = urlsplit(written)
            valid = parts.scheme in schemes and bool(parts.hostname) and parts.port != 0 and path(parts.path)
            valid = valid and not parts.query and not parts.fragment
        except ValueError:
            parts, valid = SplitResult("", "", "", "", ""), False
        if not valid or "@" in parts.netloc:
            raise problem(codes.VALUE_MALFORMED, f"{without_secrets(written)!r} is not {noun}", expected)
        return written

    return checked


SERVER_CHECK = address_check("the address of a server", ("http", "https"), "https://host:port", path=lambda _: True)
"""A check of the address of an HTTP server."""
