"""The settings of the `bigquery` sink, as pipeline files have them. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Annotated

from millstream import codes
from millstream.spec.problems import Path
from millstream.spec.references import Secret
from millstream.spec.values import After, PositiveDuration, ShapeProblem, SpecModel, Text, field, text_check
from millstream_connectors.shared.columns import repeated
from millstream_connectors.shared.google_cloud.endpoints import credential_problems, endpoint_check, endpoint_notes
from millstream_connectors.shared.tables.settings import TableColumn, TableSink

SERVICE = "https://bigquerystorage.googleapis.com"

_PROJECT = re.compile(r"([a-z0-9.-]+:)?[a-z0-9-]+")
_DATASET = re.compile(r"[A-Za-z0-9_]{1,1024}")
_TABLE = re.compile(r"[\w -]{1,1024}")


def _name_check(form: re.Pattern[str], what: str) -> After:
    return text_check(form.fullmatch, f"is not the name of {what}", f"that of {what}, alone")


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
    endpoint: Annotated[Text, After(endpoint_check("the address of BigQuery's Storage API"))] = SERVICE
    """The service, or `http://host:port` for an emulator, without encryption or credentials. Default: that of Google
    Cloud."""
    timeout_s: PositiveDuration = field(default=30.0, alias="timeout")
    """How long to wait for an answer; then it is tried again. Duration, default 30s."""

    def relation_problems(self) -> Iterator[ShapeProblem]:
        """Credentials where they would be sent unencrypted."""
        yield from super().relation_problems()
        yield from credential_problems(self.credentials, self.endpoint)

    def notes(self, path: Path) -> Iterator[tuple[Path, str]]:
        yield from endpoint_notes(self.endpoint, path)

    def resource(self, table: str) -> str:
        """The full name of a table, as requests need it."""
        return f"projects/{self.project}/datasets/{self.dataset}/tables/{table}"


class BigQuerySink(BigQueryDataset):
    """Adds records to a BigQuery table with the Storage Write API."""

    noun = "a bigquery sink"

    table: BigQueryTableName
    """Name of the table, which must exist."""
    columns: tuple[TableColumn, ...] = ()
    """The value of each column. Default: the whole record, in the columns `id`, `event_time`, `keys`, `headers` and
    `value`."""
    position_table: BigQueryTableName = "millstream_positions"
    """Table of the same dataset in which the sink stores the position of each lane. It must exist, with the columns on
    the sink's page."""

    def relation_problems(self) -> Iterator[ShapeProblem]:
        """Rejects duplicate columns, and types, which the table defines."""
        yield from super().relation_problems()
        yield from repeated([column.name for column in self.columns], "columns", "name")
        for index, column in enumerate(self.columns):
            if column.type is not None:
                what = "`type` has no effect: the table has types"
                yield ShapeProblem(codes.FIELDS_CONFLICT, ("columns", index, "type"), what, "no `type`")

    @property
    def rows(self) -> TableSink:
        """How a record becomes a row, in the settings that sinks for tables share."""
        return TableSink(table="rows", columns=self.columns)
