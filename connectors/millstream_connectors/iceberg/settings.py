"""The settings of the `iceberg` source and sink, as pipeline files have them. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import Annotated

from millstream import codes
from millstream.spec.addresses import SERVER_CHECK
from millstream.spec.problems import Path
from millstream.spec.references import TextOrReference, secret_in_file
from millstream.spec.tls import is_open
from millstream.spec.values import After, Flag, PositiveDuration, ShapeProblem, SpecModel, Text, field, without_effect
from millstream_connectors.lake.settings import EVENT_TIME_PARTS, TableCommits
from millstream_connectors.shared.aws.settings import AwsService
from millstream_connectors.shared.objects.settings import ObjectStore, is_url, url_problem

_TABLE = re.compile(r"[^\s.]+(\.[^\s.]+)+")
_STORES = ("s3", "gs")
_UNUSED = ("account", "accountKey", "sasToken", "serviceAccountKey")
"""Fields of a store that pyiceberg cannot use."""


class IcebergCatalog(SpecModel):
    """A catalog, which knows the newest state of each table: a SQLite file, or a server with the REST protocol."""

    noun = "an iceberg catalog"

    sqlite: Text | None = None
    """SQLite file of the catalog, relative to the pipeline file. A sink creates it if it does not exist."""
    rest: Annotated[Text, After(SERVER_CHECK)] | None = None
    """Address of a REST catalog, `https://host:port`."""
    name: Text = "default"
    """Name of the catalog. Several may share a SQLite file."""
    warehouse: Text | None = None
    """Place of new tables: a directory, relative to the pipeline file, or `s3://bucket/prefix` or `gs://…`. For a REST
    catalog, the warehouse as the server names it."""
    token: TextOrReference | None = None
    """Bearer token for a REST catalog, as `{env: NAME}` or `{file: PATH}`."""
    credential: TextOrReference | None = None
    """`ID:SECRET` of a client (OAuth 2) for a REST catalog, as `{env: NAME}` or `{file: PATH}`."""
    oauth2_server_uri: Annotated[Text, After(SERVER_CHECK)] | None = None
    """Address at which the client gets its tokens. Default: the REST catalog's `/v1/oauth/tokens`."""
    scope: Text | None = None
    """What the client's tokens have to allow, such as `PRINCIPAL_ROLE:ALL`. Default: `catalog`."""
    aws: AwsService | None = None
    """Signs each request to a REST catalog, as those of AWS Glue and S3 Tables demand it (Signature Version 4). Needs
    `millstream[aws]`."""
    ca: Text | None = None
    """File with the certificates of the authorities that may have issued the server's, relative to the pipeline file.
    Default: those of the package `requests`."""

    def relation_problems(self) -> Iterator[ShapeProblem]:
        """Requires one kind of catalog, and rejects settings of the other, and those for a client that is not set."""
        if (self.sqlite is None) == (self.rest is None):
            yield ShapeProblem(
                codes.FIELDS_CONFLICT, (), "a catalog is a SQLite file or a REST server", "either `sqlite` or `rest`"
            )
        elif self.rest is None:
            of_servers = {
                "token": self.token,
                "credential": self.credential,
                "oauth2ServerUri": self.oauth2_server_uri,
                "scope": self.scope,
                "ca": self.ca,
                "aws": self.aws,
            }
            yield from without_effect(of_servers, "on a SQLite file", "`rest: https://host:port`")
            if self.warehouse is not None:
                yield from url_problem(self.warehouse, ("warehouse",))
                if is_url(self.warehouse) and self.warehouse.partition("://")[0] not in _STORES:
                    what = f"{self.warehouse!r} is in a store to which Iceberg tables cannot be written"
                    yield ShapeProblem(
                        codes.VALUE_MALFORMED, ("warehouse",), what, "a directory, s3://bucket/prefix or gs://…"
                    )
        elif self.aws is not None and any(self.secrets):
            what = "`aws` signs requests, which then have no token"
            yield ShapeProblem(codes.FIELDS_CONFLICT, ("aws",), what, "one of `aws`, `token` and `credential`")
        elif self.credential is None:
            of_clients = {"oauth2ServerUri": self.oauth2_server_uri, "scope": self.scope}
            yield from without_effect(of_clients, "without `credential`", "`credential`, or no `{name}`")

    @property
    def secrets(self) -> Iterator[tuple[str, object]]:
        """The secrets that are set, by the names of their fields."""
        values = {"token": self.token, "credential": self.credential}
        yield from ((name, value) for name, value in values.items() if value is not None)

    def notes(self, path: Path) -> Iterator[tuple[Path, str]]:
        """Notes on secrets in the pipeline file, and on unencrypted ones on the network."""
        for name, value in self.secrets:
            if isinstance(value, str):
                yield (*path, name), secret_in_file(name)
        if self.rest is not None and is_open(self.rest):
            what = "credentials and file names are sent over the network unencrypted; https:// encrypts them"
            yield (*path, "rest"), what


class IcebergTable(SpecModel):
    """A table of a catalog."""

    noun = "an iceberg table"

    catalog: IcebergCatalog
    """The catalog."""
    table: Text
    """Name of the table with its namespace: `shop.orders`."""


def table_problems(settings: IcebergTable, store: ObjectStore | None) -> Iterator[ShapeProblem]:
    """Requires a namespace in the name, and rejects a `store`, or a field of it, that has no effect."""
    if _TABLE.fullmatch(settings.table) is None:
        what = f"{settings.table!r} is not the name of a table"
        yield ShapeProblem(codes.VALUE_MALFORMED, ("table",), what, "namespace and name, such as shop.orders")
    catalog = settings.catalog
    if catalog.rest is None and catalog.warehouse is not None and not is_url(catalog.warehouse):
        yield from without_effect({"store": store}, "on a directory", "`warehouse: s3://bucket/prefix`")
    if store is not None:
        given: dict[str, object] = {"account": store.account, **dict(store.secrets)}
        unused = {name: given.get(name) for name in _UNUSED}
        if store.anonymous and (catalog.warehouse or "").startswith("gs://"):
            unused["anonymous"] = True
        expected = "a store with the protocol of S3, or Google Cloud Storage with the credentials of the machine"
        yield from without_effect(unused, "on an Iceberg table", expected, within=("store",))


class IcebergSource(IcebergTable):
    """Reads the rows of an Apache Iceberg table, and then the rows that each later snapshot appends."""

    noun = "an iceberg source"

    follow: Flag = False
    """Continue with snapshots that appear later; the source then has no end. Default: end at the newest snapshot, once
    everything up to it has been read."""
    poll_every_s: PositiveDuration = field(default=10.0, alias="pollEvery")
    """How often it looks for new snapshots, with `follow`. Duration, default 10s."""
    skip_changes: Flag = False
    """Skip snapshots that change or remove rows (UPDATE, DELETE, MERGE, overwriting), including the rows that they add.
    Default: such a snapshot stops the lane."""
    store: ObjectStore | None = None
    """How to reach the object store. Default: as the catalog or the environment says."""

    def relation_problems(self) -> Iterator[ShapeProblem]:
        """Problems of the table's settings."""
        yield from table_problems(self, self.store)


_OF_COLUMN = re.compile(r"(year|month|day|hour)\((.+)\)")


class IcebergSink(TableCommits, IcebergTable):
    """Appends records to an Apache Iceberg table, each commit with the lane's position."""

    noun = "an iceberg sink"

    partition_by: tuple[Text, ...] = ()
    """Partitions of a table that the sink creates: names of `columns`, `day(at)` (or `year`, `month`, `hour`) of a
    column of the type `timestamp`, or `dt`, `hour`, `year`, `month` and `day`, which the sink derives from the record's
    event time, in UTC, as text. An existing table must have the same partitions. Default: none, or those of the
    existing table."""

    def relation_problems(self) -> Iterator[ShapeProblem]:
        """Also checks the catalog and the partitions."""
        yield from super().relation_problems()
        yield from table_problems(self, self.store)
        if self.catalog.rest is None and self.catalog.warehouse is None:
            what = "new tables need a warehouse"
            yield ShapeProblem(
                codes.FIELD_MISSING, ("catalog", "warehouse"), what, "a directory, or s3://bucket/prefix"
            )

    def _partition_problems(self, index: int, name: str) -> Iterator[ShapeProblem]:
        of_column = _OF_COLUMN.fullmatch(name)
        times = [column.name for column in self.columns if column.type == "timestamp"]
        if of_column is None:
            expected = f"one of `columns`, day(…) of a `timestamp`, or one of {', '.join(EVENT_TIME_PARTS)}"
            yield ShapeProblem(codes.FIELDS_CONFLICT, ("partitionBy", index), f"there is no column `{name}`", expected)
        elif of_column[2] not in times:
            what = f"`{of_column[2]}` is not a column of the type `timestamp`"
            expected = f"one of {', '.join(times)}" if times else "such a column in `columns`"
            yield ShapeProblem(codes.FIELDS_CONFLICT, ("partitionBy", index), what, expected)

    @property
    def partitions(self) -> Sequence[tuple[str, str]]:
        """The column and the transform of each partition."""
        found = [(name, _OF_COLUMN.fullmatch(name)) for name in self.partition_by]
        named = {column.name for column in self.columns}
        return [
            (name, "identity") if of_column is None or name in named else (of_column[2], of_column[1])
            for name, of_column in found
        ]
