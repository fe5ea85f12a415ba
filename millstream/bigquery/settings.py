"""The settings that name a dataset of BigQuery and the credentials for it."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Annotated
from urllib.parse import urlsplit

from millstream import codes
from millstream.spec.addresses import address_check
from millstream.spec.problems import Path
from millstream.spec.references import Secret
from millstream.spec.rules import After
from millstream.spec.tls import stays_on_this_machine
from millstream.spec.values import PositiveDuration, ShapeProblem, SpecModel, Text, field, problem

SERVICE = "https://bigquerystorage.googleapis.com"

_PROJECT = re.compile(r"([a-z0-9.-]+:)?[a-z0-9-]+")
_DATASET = re.compile(r"[A-Za-z0-9_]{1,1024}")
_TABLE = re.compile(r"[\w -]{1,1024}")

_checked_endpoint = address_check(
    "the address of BigQuery's Storage API",
    ("http", "https"),
    "https://host, or http://host:port for an emulator",
    path=("", "/").__contains__,
)


def _name_check(form: re.Pattern[str], what: str) -> After:
    def checked(written: str) -> str:
        if form.fullmatch(written) is None:
            raise problem(codes.VALUE_MALFORMED, f"{written!r} is not the name of {what}", f"that of {what}, alone")
        return written

    return After(checked)


BigQueryTableName = Annotated[Text, _name_check(_TABLE, "a table")]
"""The name of a table, without its dataset."""


class BigQueryDataset(SpecModel):
    """A dataset, and the credentials for it."""

    noun = "a dataset"

    project: Annotated[Text, _name_check(_PROJECT, "a project")]
    """Id of the Google Cloud project."""
    dataset: Annotated[Text, _name_check(_DATASET, "a dataset")]
    """Name of the dataset in the project."""
    credentials: Secret | None = None
    """The key of a service account, as the JSON that Google issues: `{file: PATH}`, `{env: NAME}`, or a key of a
    Kubernetes Secret. Default: the credentials of the environment or of the machine, as other clients of Google Cloud
    find them. With an `http://` endpoint none are sent."""
    endpoint: Annotated[Text, After(_checked_endpoint)] = SERVICE
    """The service, or `http://host:port` for an emulator, without encryption or credentials. Default: that of Google
    Cloud."""
    timeout_s: PositiveDuration = field(default=30.0, alias="timeout")
    """How long to wait for an answer; then it is tried again. Duration, default 30s."""

    def relation_problems(self) -> Iterator[ShapeProblem]:
        """Credentials where they would be sent unencrypted."""
        yield from super().relation_problems()
        if self.credentials is not None and not self.encrypted:
            what = "`credentials` are not sent over a connection that is not encrypted"
            yield ShapeProblem(codes.FIELDS_CONFLICT, ("credentials",), what, "an endpoint with https://, or neither")

    @property
    def encrypted(self) -> bool:
        """Whether the connection is encrypted."""
        return urlsplit(self.endpoint).scheme == "https"

    @property
    def address(self) -> str:
        """`host:port` that requests go to."""
        parts = urlsplit(self.endpoint)
        host = f"[{parts.hostname}]" if ":" in (parts.hostname or "") else parts.hostname
        return f"{host}:{parts.port or (443 if self.encrypted else 80)}"

    def resource(self, table: str) -> str:
        """The full name of a table, as requests need it."""
        return f"projects/{self.project}/datasets/{self.dataset}/tables/{table}"


def dataset_notes(settings: BigQueryDataset, path: Path) -> Iterator[tuple[Path, str]]:
    """Notes on the connection to a dataset, for `validate`."""
    host = urlsplit(settings.endpoint).hostname or ""
    if not settings.encrypted and not stays_on_this_machine(host.lower()):
        yield (*path, "endpoint"), f"the records go to {host} unencrypted; https:// encrypts them"
