"""The settings of the `sql` source and sink, as pipeline files have them. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Annotated
from urllib.parse import SplitResult, parse_qsl, unquote, urlsplit

from millstream import codes
from millstream.spec.addresses import without_secrets
from millstream.spec.problems import Path
from millstream.spec.references import TextOrReference, secret_in_file
from millstream.spec.tls import ServerTls, stays_on_this_machine
from millstream.spec.values import (
    After,
    Flag,
    PositiveDuration,
    ShapeProblem,
    SpecModel,
    Strict,
    Text,
    conflicts,
    field,
    problem,
    without_effect,
)
from millstream_connectors.shared.columns import repeated
from millstream_connectors.shared.tables.names import ColumnName, Query, TableName
from millstream_connectors.shared.tables.settings import TableSink

SQLITE, MYSQL = "sqlite", ("mysql", "mariadb")
UPSERTS = (SQLITE, "postgresql", *MYSQL)
"""Databases with a statement that inserts a row or updates the one with the same key."""
_SCHEME = re.compile(r"[a-z][a-z0-9]*(\+[a-z][a-z0-9_]*)?")
_DRIVERS: Mapping[str, str] = {"mysql": "pymysql", "mariadb": "pymysql", "postgresql": "psycopg"}
"""The driver for URLs that name none: the one whose package the documentation names."""
_SECRETS = ("user", "username", "password", "passwd", "pwd", "uid")
_PASSWORD = re.compile(r"(?i)[;{](token|pwd|password)\s*=")
"""In what some drivers take as a whole, such as ODBC's."""
_EXPECTED = (
    "sqlite:///FILE, mariadb+pymysql://HOST/DATABASE, or another URL of SQLAlchemy; "
    "set `user` and `password` separately"
)


def _checked_url(written: str) -> str:
    try:
        parts = urlsplit(written)
        valid = _SCHEME.fullmatch(parts.scheme) is not None and not parts.fragment and parts.port != 0
        valid = valid and "://" in written and _PASSWORD.search(unquote(parts.path + parts.query)) is None
        options = {name.lower() for name, _ in parse_qsl(parts.query)}
    except ValueError:
        parts, valid, options = SplitResult("", "", "", "", ""), False, set()
    if "plugin" in options:
        what = f"{without_secrets(written)!r} names a plugin, which is code that SQLAlchemy would load"
        raise problem(codes.VALUE_MALFORMED, what, "a URL without the option `plugin`")
    if parts.scheme.partition("+")[0] == SQLITE:
        valid = valid and not parts.netloc and len(parts.path) > 1 and ":memory:" not in parts.path
        valid = valid and not parts.query and parts.scheme in (SQLITE, "sqlite+pysqlite")
    if not valid or "@" in parts.netloc or options & set(_SECRETS):
        raise problem(
            codes.VALUE_MALFORMED, f"{without_secrets(written)!r} is not the address of a database", _EXPECTED
        )
    return written


class SqlDatabase(SpecModel):
    """A database, and the user that connects to it."""

    noun = "a sql connection"

    url: Annotated[Text, After(_checked_url)]
    """The database, as SQLAlchemy writes it, without credentials: `sqlite:///orders.db` (relative to the pipeline file;
    `sqlite:////var/orders.db` is not), `mariadb+pymysql://host:3306/shop`. Options of the driver follow a `?`."""
    user: Text | None = None
    """Name of the user that connects."""
    password: TextOrReference | None = None
    """Its password, as `{env: NAME}` or `{file: PATH}`."""
    tls: ServerTls | None = None
    """TLS to MariaDB or MySQL, with PyMySQL: which certificates are accepted; `{}` for those of the system's
    certificate authorities. Other drivers have their own options in `url`."""
    timeout_s: PositiveDuration = field(default=60.0, alias="timeout")
    """Longest time for one transaction or one read. After it, the connection is closed and a new one is tried.
    Duration, default 1m."""

    def relation_problems(self) -> Iterator[ShapeProblem]:
        """Rejects settings that have no effect on the database."""
        yield from super().relation_problems()
        if self.backend == SQLITE:
            given = {"user": self.user, "password": self.password, "tls": self.tls}
            yield from without_effect(given, "with SQLite, whose database is a file", "no `{name}`")
        elif self.tls is not None and (self.backend not in MYSQL or self.driver != "pymysql"):
            what = f"`tls` cannot be given to {self.backend} with {self.driver or 'its driver'}"
            yield ShapeProblem(codes.FIELDS_CONFLICT, ("tls",), what, "the driver's own options after a `?` in `url`")

    @property
    def backend(self) -> str:
        """The kind of database."""
        return urlsplit(self.url).scheme.partition("+")[0]

    @property
    def driver(self) -> str:
        """The driver; empty for SQLAlchemy's default."""
        return urlsplit(self.url).scheme.partition("+")[2] or _DRIVERS.get(self.backend, "")

    @property
    def file(self) -> str | None:
        """The SQLite file, as written in the URL."""
        return unquote(urlsplit(self.url).path.removeprefix("/")) if self.backend == SQLITE else None

    @property
    def host(self) -> str:
        return urlsplit(self.url).hostname or ""

    @property
    def shown(self) -> str:
        """The URL for messages."""
        parts = urlsplit(self.url)
        return self.url if self.backend == SQLITE else f"{parts.scheme}://{parts.netloc}{parts.path}"

    def notes(self, path: Path) -> Iterator[tuple[Path, str]]:
        """Notes on a password in the pipeline file, and records that are sent unencrypted."""
        if isinstance(self.password, str):
            yield (*path, "password"), secret_in_file("password")
        is_open = self.backend in MYSQL and self.tls is None and self.host != ""
        if is_open and not stays_on_this_machine(self.host.lower()):
            yield (*path, "url"), "the records are sent to the server unencrypted; `tls: {}` encrypts them"


class SqlSplit(SpecModel):
    """How the lanes of several partitions share the rows."""

    noun = "`split`"

    column: ColumnName
    """A column of whole numbers. A row in which it is null is in the first range."""
    first: Annotated[int, Strict()] = field(alias="from")
    """About the smallest number; smaller ones are in the first range."""
    last: Annotated[int, Strict()] = field(alias="to")
    """About the largest number; larger ones are in the last range."""

    def relation_problems(self) -> Iterator[ShapeProblem]:
        """Requires a range that is not empty."""
        if self.last <= self.first:
            what = f"`to` is {self.last}, and `from` is {self.first}"
            yield ShapeProblem(codes.FIELDS_CONFLICT, ("to",), what, "a larger number than `from`")

    def bounds(self, partition: int, partitions: int) -> tuple[int | None, int | None]:
        """The range of a partition: its first number, and the first one after it; None for no bound."""
        size = self.last - self.first + 1
        low, high = (self.first + size * number // partitions for number in (partition, partition + 1))
        return (low if partition else None), (high if partition + 1 < partitions else None)


class SqlSource(SqlDatabase):
    """Reads the rows of a table, or of a query, in the order of a cursor."""

    noun = "a sql source"

    table: TableName | None = None
    """The table to read, `table` or `schema.table`."""
    query: Query | None = None
    """A SELECT instead of a table. Each row becomes a record: a JSON object with a member for each column."""
    cursor: tuple[ColumnName, ...] = ()
    """Columns that together identify a row and define the reading order, the most significant one first: whole numbers,
    decimals, times or texts. An index on them keeps each read short. Rows in which one of them is null are left out.
    Default, for a table: its primary key."""
    split: SqlSplit | None = None
    """How several `partitions` share the rows, by ranges of a column. Default: the first lane reads all rows."""
    follow: Flag = False
    """Keep looking for rows with a greater cursor; the source then has no end. Only for SQLite: other databases may
    commit a row after one with a greater cursor, and it would be missed."""
    poll_every_s: PositiveDuration = field(default=1.0, alias="pollEvery")
    """With `follow`: how often it looks for new rows. Duration, default 1s."""

    def relation_problems(self) -> Iterator[ShapeProblem]:
        """Requires one thing to read, and rejects what the database cannot do."""
        yield from super().relation_problems()
        yield from conflicts(
            (
                (self.query is None) == (self.table is None),
                (),
                "a sql source reads either a table or a query",
                "`table`, or `query` with `cursor`",
            ),
            (
                self.query is not None and self.table is None and not self.cursor,
                ("cursor",),
                "`query` has no `cursor`",
                "`cursor: [id]`",
            ),
            (
                not self.follow and "poll_every_s" in self.model_fields_set,
                ("pollEvery",),
                "`pollEvery` has no effect without `follow`",
                "`follow: true`",
            ),
        )
        yield from repeated(self.cursor, "cursor")
        if self.follow and self.backend != SQLITE:
            what = f"{self.backend} may commit a row after one with a greater cursor, which `follow` would miss"
            yield ShapeProblem(codes.NOT_ALLOWED, ("follow",), what, "no `follow`, or a `postgres` source")


class SqlSink(TableSink, SqlDatabase):
    """Writes records to a database table, each batch in one transaction with the lane's position."""

    noun = "a sql sink"

    def relation_problems(self) -> Iterator[ShapeProblem]:
        """Rejects a mode that the database does not support."""
        yield from super().relation_problems()
        if self.mode == "upsert" and self.backend not in UPSERTS:
            what = f"{self.backend} has no statement for `mode: upsert` that this sink knows"
            yield ShapeProblem(
                codes.NOT_ALLOWED, ("mode",), what, f"`insert`, `delete`, or one of {', '.join(UPSERTS)}"
            )

    def notes(self, path: Path) -> Iterator[tuple[Path, str]]:
        """Notes on the connection, and on a database with which the sink was not tested."""
        yield from super().notes(path)
        if self.backend not in (SQLITE, *MYSQL):
            yield (*path, "url"), f"the sink was tested against SQLite and MariaDB, not against {self.backend}"
