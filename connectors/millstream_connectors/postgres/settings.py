"""The settings of the `postgres` source and sink, as pipeline files have them. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import Annotated, Literal

from millstream import codes
from millstream.spec.problems import Path
from millstream.spec.references import Secret, TextOrReference, secret_in_file
from millstream.spec.tls import stays_on_this_machine
from millstream.spec.values import (
    Flag,
    PositiveDuration,
    ShapeProblem,
    SpecModel,
    Strict,
    Text,
    conflicts,
    field,
    text_check,
    without_effect,
)
from millstream_connectors.shared.columns import repeated
from millstream_connectors.shared.tables.names import ColumnName, Query, TableName
from millstream_connectors.shared.tables.settings import TableSink

SslMode = Literal["disable", "prefer", "require", "verify-ca", "verify-full"]


class PostgresServer(SpecModel):
    """A database, and the role that connects to it."""

    noun = "a postgres connection"

    host: Text = "localhost"
    """Name or address of the server. A path that begins with `/` is the directory of its unix socket."""
    port: Annotated[int, Strict(ge=1, le=65535)] = 5432
    """Port of the server."""
    database: Text
    """Name of the database."""
    user: Text
    """Name of the role that connects."""
    password: TextOrReference | None = None
    """Its password, as `{env: NAME}` or `{file: PATH}`. Default: the one in `PGPASSWORD` or `~/.pgpass`, if any."""
    sslmode: SslMode = "prefer"
    """Whether the connection is encrypted: `disable`, `prefer` (if the server can), `require`, `verify-ca` (its
    certificate is checked) or `verify-full` (its host name, too). Only `verify-full` protects against an attacker
    between the two."""
    ssl_root_cert: TextOrReference | None = None
    """Certificates of the authorities that may have issued the server's, as PEM: a file, relative to the pipeline file,
    or a reference to its contents. Default: those of this system."""
    ssl_cert: Secret | None = None
    """The role's own certificate, as PEM, for servers that require one: `{file: PATH}`, `{env: NAME}`, or a key of a
    Kubernetes Secret. With `sslmode: require`, the server's certificate is then not checked, whatever
    `~/.postgresql/root.crt` says."""
    ssl_key: Secret | None = None
    """Its private key, without a passphrase."""
    timeout_s: PositiveDuration = field(default=60.0, alias="timeout")
    """Longest time for one transaction or one read. After it, the connection is closed and a new one is tried.
    Duration, default 1m."""

    def relation_problems(self) -> Iterator[ShapeProblem]:
        """Rejects certificates that `sslmode` does not use, and a certificate without its key."""
        if not self.sslmode.startswith("verify"):
            given = {"sslRootCert": self.ssl_root_cert}
            yield from without_effect(given, f"with `sslmode: {self.sslmode}`", "`sslmode: verify-full`")
        yield from conflicts(
            (
                (self.ssl_cert is None) != (self.ssl_key is None),
                (),
                "`sslCert` and `sslKey` belong together",
                "both of them, or neither",
            ),
            (
                self.ssl_cert is not None and self.ssl_key is not None and self.sslmode in ("disable", "prefer"),
                ("sslCert",),
                f"`sslCert` needs encryption, which `sslmode: {self.sslmode}` does not demand",
                "`sslmode: verify-full`",
            ),
        )

    def notes(self, path: Path) -> Iterator[tuple[Path, str]]:
        """Notes on a password in the pipeline file, and a server that is not verified."""
        if isinstance(self.password, str):
            yield (*path, "password"), secret_in_file("password")
        is_local = self.host.startswith("/") or stays_on_this_machine(self.host.lower())
        if not self.sslmode.startswith("verify") and not is_local:
            what = f"`sslmode: {self.sslmode}` does not verify that {self.host} is the intended server"
            yield (*path, "sslmode"), f"{what}; `verify-full` does"


def quoted(name: str) -> str:
    """A name, quoted for a statement."""
    return '"' + name.replace('"', '""') + '"'


def quoted_table(table: str) -> str:
    """`schema.table`, quoted for a statement."""
    return ".".join(map(quoted, table.split(".")))


_SLOT = re.compile(r"[a-z0-9_]{1,63}")


class PostgresCdc(SpecModel):
    """Which changes to tables are read."""

    noun = "`cdc`"

    publication: ColumnName
    """The publication that includes the tables."""
    slot: Annotated[
        Text, text_check(_SLOT.fullmatch, "is not the name of a replication slot", "at most 63 of a-z, 0-9 and _")
    ]
    """The replication slot, for this source alone. The first run creates it if it does not exist. The server keeps its
    WAL for it until the slot is dropped."""
    tables: tuple[TableName, ...] = ()
    """Only the changes to these tables, as `table` (of the schema `public`) or `schema.table`. Default: all tables of
    the publication."""
    snapshot: Literal["initial", "never"] = "initial"
    """Whether the first run reads the existing rows of the tables before their changes: `initial` or `never`."""
    create_publication: Flag = False
    """Create the publication, for `tables`, if it does not exist."""

    @property
    def table_paths(self) -> Sequence[str]:
        """The tables, each with its schema."""
        return tuple(table if "." in table else f"public.{table}" for table in self.tables)

    def relation_problems(self) -> Iterator[ShapeProblem]:
        """Requires tables to create a publication for."""
        if self.create_publication and not self.tables:
            what = "`createPublication` needs to know the tables"
            yield ShapeProblem(codes.FIELDS_CONFLICT, ("createPublication",), what, "`tables: [name]`")


class PostgresSource(PostgresServer):
    """Reads the rows of a PostgreSQL query in the order of a growing cursor, or the changes to tables."""

    noun = "a postgres source"

    query: Query | None = None
    """A SELECT. Each of its rows becomes a record: a JSON object with a member for each column."""
    cursor: tuple[ColumnName, ...] = ()
    """Columns of the query that together identify a row and grow from row to row, the most significant one first:
    `[id]`, or `[changed, id]`. An index on them keeps each read short. Rows in which one of them is null are left
    out."""
    cdc: PostgresCdc | None = None
    """Changes to tables instead of a query, by logical replication. Each becomes a record, a JSON object with `op`,
    `before` and `after`."""
    poll_every_s: PositiveDuration = field(default=1.0, alias="pollEvery")
    """How often it looks for new rows. Duration, default 1s."""
    stop_at_end: Flag = False
    """End at the row, or the change, that is the last one when the first run starts."""
    wait_for: Literal["transactions", "writers"] = "transactions"
    """Which open transactions new rows wait for, because these may still commit a row with a smaller cursor:
    `transactions` (all of the database), or `writers` (those that have written to the tables of the query). `writers`
    is enough if each INSERT takes its value from a sequence itself. With a first column of type `xid8`, rows wait for
    none."""

    def relation_problems(self) -> Iterator[ShapeProblem]:
        """Requires either a query with a cursor, each of its columns once, or changes."""
        yield from super().relation_problems()
        yield from conflicts(
            (
                (self.query is None) == (self.cdc is None),
                (),
                "a postgres source reads either a query or changes",
                "`query` with `cursor`, or `cdc`",
            ),
            (
                self.query is not None and self.cdc is None and not self.cursor,
                ("cursor",),
                "`query` has no `cursor`",
                "`cursor: [id]`",
            ),
        )
        if self.cdc is not None and self.query is None:
            of_queries = {"cursor": "cursor", "poll_every_s": "pollEvery", "wait_for": "waitFor"}
            given = {alias: name for name, alias in of_queries.items() if name in self.model_fields_set}
            yield from without_effect(given, "with `cdc`", "`query`, or no `{name}`")
        yield from repeated(self.cursor, "cursor")


class PostgresSink(TableSink, PostgresServer):
    """Writes records to a PostgreSQL table, each batch in one transaction with the lane's position."""

    noun = "a postgres sink"
