"""Addresses of servers as pipeline files give them: a URL that holds no credentials.

Above it: the settings of connectors and formats. Below it: the problems of values.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from urllib.parse import SplitResult, urlsplit

from millstream import codes
from millstream.spec.values import problem


def address_check(
    noun: str, schemes: Collection[str], expected: str, *, path: Callable[[str], bool]
) -> Callable[[str], str]:
    """A check that returns a URL as it was written, and raises a problem if it is not the address of `noun`.

    `path`: whether a path is valid. Credentials in a URL would be printed with it, so they are refused, and omitted
    from the message.
    """

    def checked(written: str) -> str:
        try:
            parts = urlsplit(written)
            valid = parts.scheme in schemes and bool(parts.hostname) and parts.port != 0 and path(parts.path)
            valid = valid and not parts.query and not parts.fragment
        except ValueError:
            parts, valid = SplitResult("", "", "", "", ""), False
        if not valid or "@" in parts.netloc:
            what = f"{written.rpartition('@')[2]!r} is not {noun}"
            raise problem(codes.VALUE_MALFORMED, what, expected)
        return written

    return checked
