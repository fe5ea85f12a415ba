"""Addresses that contain credentials, in the environment.

Above it: telemetry, and the environment of functions. Below it: nothing.
"""

from __future__ import annotations


def names_a_user(address: str) -> bool:
    """Whether a URL, or `host:port`, has a user or a password before its host."""
    _, slashes, after = address.partition("//")
    authority = (after if slashes else address).partition("/")[0]
    return "@" in authority
