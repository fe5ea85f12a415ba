"""What a user's function gets of the environment of the process that starts it.

A runner's environment holds more than a function should see: tokens of a cloud, of a repository, of the pipeline's own
sources and sinks. So a function gets this short list, and what its `env` in the pipeline file gives it.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

INHERITED = (
    # Where programs and libraries are found, and who runs them.
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
    # Which certificates are trusted.
    "SSL_CERT_FILE",
    "SSL_CERT_DIR",
    "REQUESTS_CA_BUNDLE",
    "CURL_CA_BUNDLE",
    # Where telemetry goes; headers, which may hold a token, do not.
    "OTEL_*",
)
"""Names of variables; `*` at the end stands for any rest."""

_PATTERN = re.compile("|".join(name.replace("*", ".*") for name in INHERITED))
_SECRET = re.compile(r"OTEL_.*_HEADERS")


def inherited(environment: Mapping[str, str]) -> dict[str, str]:
    """The variables that are handed on."""
    return {
        name: value
        for name, value in environment.items()
        if _PATTERN.fullmatch(name) is not None and _SECRET.fullmatch(name) is None
    }
