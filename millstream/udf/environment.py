"""The environment variables that a user's function inherits from the process that starts it.

A runner's environment contains more than a function should see: tokens of a cloud, of a repository, of the pipeline's
own sources and sinks. So a function gets the variables in this short list, and those of its `env` in the pipeline file.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from millstream.endpoints import names_a_user

INHERITED = (
    # Where programs and libraries are, and which user runs them.
    "PATH",
    "HOME",
    "USER",
    "LOGNAME",
    "SHELL",
    "TMPDIR",
    "LD_LIBRARY_PATH",
    "VIRTUAL_ENV",
    "PYTHON*",
    "JAVA_HOME",
    # Language, time and terminal.
    "LANG",
    "LANGUAGE",
    "LC_*",
    "TZ",
    "TERM",
    "NO_COLOR",
    # The trusted certificates.
    "SSL_CERT_FILE",
    "SSL_CERT_DIR",
    "REQUESTS_CA_BUNDLE",
    "CURL_CA_BUNDLE",
    # Settings of telemetry, except headers and addresses with credentials.
    "OTEL_*",
)
"""Names of variables. `*` at the end matches any characters."""

_PATTERN = re.compile("|".join(name.replace("*", ".*") for name in INHERITED))
_SECRET = re.compile(r"OTEL_.*_(HEADERS|PASSWORD|TOKEN)")
_ADDRESS = re.compile(r"OTEL_.*_ENDPOINT")


def inherited(environment: Mapping[str, str]) -> dict[str, str]:
    """The variables that a function inherits."""
    return {
        name: value
        for name, value in environment.items()
        if _PATTERN.fullmatch(name) is not None and not _is_secret(name, value)
    }


def _is_secret(name: str, value: str) -> bool:
    return _SECRET.fullmatch(name) is not None or (_ADDRESS.fullmatch(name) is not None and names_a_user(value))
