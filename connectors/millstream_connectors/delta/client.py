"""A connector's way to a table of Delta Lake, and what its errors mean to a lane.

Above it: connectors. Below it: deltalake, an extra. Every failure becomes a Millstream error, by who must act: one that
passes by itself becomes `RetryLaterError`, so the lane waits for a store that is away.
"""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from pathlib import Path

from deltalake import DeltaTable
from deltalake.exceptions import DeltaError, TableNotFoundError

from millstream import codes
from millstream.errors import MillstreamError, RetryLaterError, UserError
from millstream.spec.references import resolve
from millstream_connectors.delta.settings import EMULATOR
from millstream_connectors.shared.objects.certificates import distrust
from millstream_connectors.shared.objects.settings import ObjectStore, is_url, parse_url
from millstream_connectors.shared.objects.stores import code_in, secrets_of

FAILURES = (DeltaError, OSError)
"""Exceptions of the client: everything that can go wrong between a lane and its table."""
ABSENT = TableNotFoundError
"""There is no table yet, or it cannot be created."""

_PREFIXES = {"s3": "aws_", "az": "azure_storage_", "gs": "google_"}
"""Of the names of secrets, by the kind of store."""
_CONNECT_S = 5.0
_RETRY_S = 10.0
"""How long the client repeats a request by itself. After that, the lane reports the failure and waits."""
_NOBODY = '{"client_email": "", "private_key": "", "private_key_id": "", "disable_oauth": true}'
"""The key of a service account without a token. The client for Google Cloud Storage heeds `skip_signature` when it
reads and lists; when it writes or deletes, it would ask the machine for a token and send that."""
_BEFORE_A_SIGNATURE = ("AZURE_STORAGE_ACCOUNT_KEY", "AZURE_STORAGE_ACCESS_KEY", "AZURE_STORAGE_MASTER_KEY")
"""Variables of the environment that the client prefers to a shared access signature in its options."""
_WITH_A_KEY = ("AWS_SESSION_TOKEN",)
"""Variables of the environment that the client takes together with an access key in its options."""
_COLOURS = re.compile(r"\x1b\[[0-9;]*m")
_MISSING = ("NoSuchBucket", "ContainerNotFound", "The specified bucket does not exist")
_REFUSED = ("403 Forbidden", "401 Unauthorized", "necessary privileges", "Permission denied")
_UNFIT = ("Could not create local directory", "Not a directory", "Unsupported table feature", "unsupported")
_LISTED_WHOLE = "Invalid table version"
"""The client lists the log from the table's version on, and the list began elsewhere."""
_SHOWN = 300
"""Characters of a client's message."""


def address_of(path: str, base_dir: Path) -> str:
    """Address of a table: a URL unchanged, a directory as an absolute path."""
    return path.rstrip("/") if is_url(path) else str((base_dir / path).resolve())


def options_of(path: str, settings: ObjectStore, base_dir: Path, where: str) -> dict[str, str]:
    """The options with which deltalake reaches an object store. Raises `UserError` for missing credentials."""
    if not is_url(path):
        return {}
    url = parse_url(path)
    secrets = {f"{_PREFIXES[url.scheme]}{name}": value for name, value in secrets_of(url, settings).items()}
    options = {
        name: resolve(value, base_dir, f"{where}: the {name} for {url.root}")
        for name, value in secrets.items()
        if value is not None
    }
    if settings.sas_token is not None:
        _check_environment(_BEFORE_A_SIGNATURE, "sasToken", where)
    if settings.access_key is not None and settings.session_token is None:
        _check_environment(_WITH_A_KEY, "accessKey", where)
    plain = {
        "s3": (("aws_region", settings.region), ("aws_endpoint", settings.endpoint)),
        "az": (("azure_storage_account_name", settings.account), ("azure_endpoint", settings.endpoint)),
        "gs": (("google_base_url", settings.endpoint),),
    }
    options.update((name, text) for name, text in plain[url.scheme] if text is not None)
    if settings.anonymous:
        options["skip_signature"] = "true"
        if url.scheme == "gs":
            options["google_service_account_key"] = _NOBODY
    if settings.endpoint is not None and settings.endpoint.startswith("http://"):
        options["allow_http"] = "true"
    return options | {
        "timeout": f"{settings.timeout_s:g}s",
        "connect_timeout": f"{min(settings.timeout_s, _CONNECT_S):g}s",
        "max_retries": "5",
        "retry_timeout": f"{min(settings.timeout_s, _RETRY_S):g}s",
    }


def _check_environment(variables: Sequence[str], name: str, where: str) -> None:
    """Raises `UserError` if the client would use one of the variables in place of a credential, or with it."""
    found = next((variable for variable in variables if variable in os.environ), None)
    if found is not None:
        what = f"would use {found} of the environment, which does not belong to `{name}`: remove one of them"
        raise UserError(codes.CONNECTOR_SETTINGS, f"{where}: the client of Delta tables {what}")


def is_listed_whole(error: BaseException, address: str, options: dict[str, str], version: int) -> bool:
    """Whether a commit on a version of the table failed because the store lists objects from the first one on, wherever
    the client asks it to begin. The version exists; if it were gone, the client would raise the same error."""
    if _LISTED_WHOLE not in str(error):
        return False
    try:
        DeltaTable(address, version=version, storage_options=options)
    except FAILURES:
        return False
    return True


def listed_whole(path: str, where: str) -> UserError:
    """The error for such a store, with which no commit succeeds."""
    what = (
        f"{where}: the Delta table {path} cannot be written: the store lists the table's log from its first version "
        "on, and deltalake asks it to begin at a later one"
    )
    if path.startswith("az://"):
        what += f". If it is Azurite, set {EMULATOR} in the environment of the pipeline"
    return UserError(codes.TARGET_UNFIT, what)


def error_of(error: BaseException, path: str, where: str) -> MillstreamError:
    """The Millstream error for an error of the client. No message holds a credential."""
    said = _COLOURS.sub("", str(error))
    place = f"{where}: the Delta table {path}"
    text = code_in(said) or first_lines(said, error)
    if any(word in said for word in _MISSING):
        return UserError(
            codes.TARGET_UNFIT, f"{place}: there is no such bucket. Correct the path, or create the bucket"
        )
    if isinstance(error, PermissionError) or any(word in said for word in _REFUSED):
        return UserError(codes.TARGET_REFUSES, f"{place}: access is denied: {text}")
    if (what := distrust(" ".join(said.replace("↳", "").split()))) is not None:
        return UserError(codes.TARGET_REFUSES, f"{place}: {what}")
    if any(word in said for word in _UNFIT):
        return UserError(codes.TARGET_UNFIT, f"{place}: {text}")
    advice = ". Free some space there" if "No space left" in said else ""
    return RetryLaterError(codes.TARGET_AWAY, f"{place} cannot be used now: {text}{advice}")


def first_lines(said: str, error: BaseException) -> str:
    """The client's message in one line, not too long."""
    text = " ".join(line.strip() for line in said.splitlines() if line.strip()) or type(error).__name__
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}…"
