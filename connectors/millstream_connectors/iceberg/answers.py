"""Which properties of a catalog's answer, and of a table, are used.

Both are data of others. pyiceberg takes nearly every setting of a client from them as well: names of Python classes,
the address to which credentials are sent, proxies. So only the properties that are listed here are used: where a server
keeps its tables, and credentials that it vends for their files. Everything else comes from the pipeline file.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

_CATALOG = frozenset(("prefix", "namespace-separator", "token"))
_FILES = frozenset(
    (
        *("s3.endpoint", "s3.region", "s3.access-key-id", "s3.secret-access-key", "s3.session-token"),
        *("s3.anonymous", "s3.force-virtual-addressing", "s3.resolve-region", "client.region"),
        *("client.access-key-id", "client.secret-access-key", "client.session-token"),
        *("gcs.oauth2.token", "gcs.oauth2.token-expires-at", "gcs.service.host", "gcs.default-bucket-location"),
    )
)
_TIMES = frozenset(("s3.connect-timeout", "s3.request-timeout"))
"""Settings of the pipeline file alone."""


def of_catalog(answered: Mapping[str, Any]) -> dict[str, str]:
    """What is used of the configuration that a catalog answers with."""
    return {**_texts(answered, _CATALOG), **of_files(answered)}


def of_files(answered: Mapping[str, Any]) -> dict[str, str]:
    """What is used of an answer's settings for the files of a table."""
    found = _texts(answered, _FILES)
    if "gcs.oauth2.token" not in found:
        # This machine's own token would be sent to that address.
        found.pop("gcs.service.host", None)
    return found


def for_files(properties: Mapping[str, Any]) -> dict[str, str]:
    """Those of a catalog's own properties that say how its files are reached."""
    return _texts(properties, _FILES | _TIMES)


def _texts(properties: Mapping[str, Any], names: frozenset[str]) -> dict[str, str]:
    return {name: value for name, value in properties.items() if name in names and isinstance(value, str)}
