"""The publication of a source of changes: whether it includes the tables that are named, and its creation.

A publication that includes a table makes the server refuse UPDATE and DELETE statements of every program, if the server
could not say which row they change. So everything is checked before a publication is created, and nothing is created
otherwise.

Above it: the catalog's checks, and the lane. Below it: a connection.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from millstream.durable import step
from millstream_connectors.postgres.client import Connection
from millstream_connectors.postgres.settings import PostgresCdc, PostgresSource, quoted, quoted_table
from millstream_connectors.shared.faults import Fault

_TABLE, _PARTITIONED = "r", "p"
_NAMED = """
SELECT c.oid, c.relkind::text AS kind, c.relpersistence::text AS persistence,
  pg_has_role(c.relowner, 'USAGE') AS is_owner,
  EXISTS (SELECT FROM pg_index i WHERE i.indrelid = c.oid AND i.indisprimary) AS has_key,
  CASE WHEN c.relispartition THEN
    (SELECT format('%s.%s', rn.nspname, r.relname) FROM pg_class r JOIN pg_namespace rn ON rn.oid = r.relnamespace
     WHERE r.oid = pg_partition_root(c.oid)) END AS root
FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace WHERE n.nspname = $1 AND c.relname = $2
"""
_UNIDENTIFIED = """
SELECT format('%s.%s', n.nspname, c.relname) FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
WHERE c.oid IN (SELECT $1::oid UNION SELECT relid FROM pg_partition_tree($1::oid) WHERE isleaf) AND c.relkind = 'r'
  AND c.relreplident <> 'f' AND NOT EXISTS (
    SELECT FROM pg_index i WHERE i.indrelid = c.oid AND i.indisvalid AND i.indimmediate
    AND CASE c.relreplident WHEN 'd' THEN i.indisprimary WHEN 'i' THEN i.indisreplident ELSE false END)
ORDER BY 1
"""
# Servers before 13 have no such column, and no option for it.
_PUBLICATION = """
SELECT COALESCE((to_jsonb(p) ->> 'pubviaroot')::boolean, false) AS via_root FROM pg_publication p WHERE pubname = $1
"""
_VIA_ROOT_SINCE = 13
_IDS = """
SELECT c.oid, format('%s.%s', n.nspname, c.relname) AS path
FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
WHERE format('%s.%s', n.nspname, c.relname) = ANY($1::text[])
"""
_PATH = """
SELECT format('%s.%s', n.nspname, c.relname)
FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace WHERE c.oid = $1
"""
_INCLUDED = "SELECT format('%s.%s', schemaname, tablename) FROM pg_publication_tables WHERE pubname = $1"
_WOULD_REFUSE = "With the publication, the server would refuse UPDATE and DELETE of every program"
_MAY_CREATE = "SELECT has_database_privilege(current_database(), 'CREATE')"


@dataclass(frozen=True, slots=True)
class _Named:
    """A table that the source names."""

    path: str
    oid: int
    kind: str
    persistence: str
    is_owner: bool
    has_key: bool
    root: str | None
    """The partitioned table of which it is a partition."""


async def exists(connection: Connection, cdc: PostgresCdc) -> bool:
    """Whether there is a publication of that name."""
    return await connection.fetchrow(_PUBLICATION, cdc.publication) is not None


async def missing(connection: Connection, cdc: PostgresCdc) -> Sequence[str]:
    """The tables that the source names and the publication does not include."""
    included = {row[0] for row in await connection.fetch(_INCLUDED, cdc.publication)}
    return [path for path in cdc.table_paths if path not in included]


async def ids_of(connection: Connection, paths: Sequence[str]) -> dict[int, str]:
    """The tables of these names, by their ids."""
    return {row["oid"]: row["path"] for row in await connection.fetch(_IDS, list(paths))}


async def path_of(connection: Connection, oid: int) -> str | None:
    """The name that a table has now; None if it was dropped."""
    found: str | None = await connection.fetchval(_PATH, oid)
    return found


async def faults_of_missing(connection: Connection, cdc: PostgresCdc) -> list[Fault]:
    """Why a publication that exists does not include each of the tables that are named."""
    row = await connection.fetchrow(_PUBLICATION, cdc.publication)
    assert row is not None, "it exists"
    absent = set(await missing(connection, cdc))
    faults = []
    for index, path in enumerate(cdc.table_paths):
        if path in absent:
            table = await _named(connection, path)
            faults.append(Fault(("cdc", "tables", index), *_reason(cdc, path, table, via_root=row["via_root"])))
    return faults


def _reason(cdc: PostgresCdc, path: str, table: _Named | None, *, via_root: bool) -> tuple[str, str]:
    publication = quoted(cdc.publication)
    if table is not None and table.kind == _PARTITIONED and not via_root:
        what = f"{path} is partitioned, and the publication `{cdc.publication}` publishes its partitions instead"
        return what, f"ALTER PUBLICATION {publication} SET (publish_via_partition_root = true)"
    if table is not None and table.root is not None and via_root:
        what = f"{path} is a partition, whose changes the publication `{cdc.publication}` publishes under {table.root}"
        return what, f"`{table.root}` in `tables`"
    what = f"the publication `{cdc.publication}` does not include the table {path}"
    if table is None:
        return f"{what}, which does not exist: it may have been renamed or dropped", "the table's name in `tables`"
    return what, f"ALTER PUBLICATION {publication} ADD TABLE {quoted_table(path)}"


async def faults_of_creation(connection: Connection, settings: PostgresSource, cdc: PostgresCdc) -> list[Fault]:
    """What speaks against creating the publication. Changes nothing."""
    faults = []
    if not await connection.fetchval(_MAY_CREATE):
        what = f"the role {settings.user} may not create a publication in the database {settings.database}"
        expected = f"GRANT CREATE ON DATABASE {quoted(settings.database)} TO {quoted(settings.user)}"
        faults.append(Fault(("cdc", "createPublication"), what, expected))
    for index, path in enumerate(cdc.table_paths):
        fault = await _fault_of(connection, settings, cdc, path, await _named(connection, path))
        if fault is not None:
            faults.append(Fault(("cdc", "tables", index), *fault))
    return faults


async def _fault_of(
    connection: Connection, settings: PostgresSource, cdc: PostgresCdc, path: str, table: _Named | None
) -> tuple[str, str] | None:
    if table is None:
        return f"there is no table {path} in the database {settings.database}", "an existing table"
    if table.kind not in (_TABLE, _PARTITIONED) or table.persistence != "p":
        return f"{path} cannot be published: it is a view, or a foreign, temporary or unlogged table", "a table"
    if not table.is_owner:
        what = f"the role {settings.user} does not own the table {path}, so it may not publish it"
        return what, "the publication, created by the table's owner"
    if table.kind == _PARTITIONED and not table.has_key:
        # Partitions that are created later would have none either.
        what = f"{path} has no primary key. {_WOULD_REFUSE} in its partitions"
        return what, f"ALTER TABLE {quoted_table(path)} ADD PRIMARY KEY (…)"
    without = [row[0] for row in await connection.fetch(_UNIDENTIFIED, table.oid)]
    if without:
        shown = ", ".join(without[:5]) + (", …" if len(without) > 5 else "")
        what = f"{shown} has no replica identity. {_WOULD_REFUSE} in it"
        return what, f"a primary key, or ALTER TABLE {quoted_table(without[0])} REPLICA IDENTITY FULL"
    if cdc.snapshot == "initial" and not table.has_key:
        what = f"{path} has no primary key, so its rows cannot be read in a fixed order"
        return what, "a primary key; or `snapshot: never`"
    return None


async def _named(connection: Connection, path: str) -> _Named | None:
    row = await connection.fetchrow(_NAMED, *path.split(".", 1))
    return None if row is None else _Named(path, *row)


async def create(connection: Connection, cdc: PostgresCdc) -> None:
    """Create the publication for the source's tables. Changes of partitions are published under their table, also those
    of a table that becomes partitioned later."""
    tables = ", ".join(quoted_table(table) for table in cdc.table_paths)
    options = ""
    if connection.get_server_version().major >= _VIA_ROOT_SINCE:
        options = " WITH (publish_via_partition_root = true)"
    with step("postgres_cdc.publish"):
        await connection.execute(f"CREATE PUBLICATION {quoted(cdc.publication)} FOR TABLE {tables}{options}")


async def drop(connection: Connection, cdc: PostgresCdc) -> None:
    """Remove the publication."""
    await connection.execute(f"DROP PUBLICATION IF EXISTS {quoted(cdc.publication)}")
