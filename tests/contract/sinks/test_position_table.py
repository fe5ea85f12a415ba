"""The table of positions that the SDK keeps in a user's database, on a real MariaDB."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing, contextmanager
from typing import Any

import pymysql  # type: ignore[import-untyped]
import pytest

import millstream_udf as udf
from tests.support.mariadb_server import USER, MariaDatabase, MariaServer, why_missing

pytestmark = pytest.mark.skipif(bool(why_missing()), reason=why_missing() or "it is there")

NAME = "p/out.in-out.0"


@pytest.fixture
def database(mariadb: MariaServer) -> MariaDatabase:
    database = mariadb.database()
    database.execute("CREATE TABLE numbers (n INT) ENGINE = InnoDB")
    return database


@contextmanager
def connected(database: MariaDatabase, *, autocommit: bool = False) -> Iterator[Any]:
    address = {"host": "127.0.0.1", "port": database.server.port, "user": USER, "database": database.name}
    with closing(pymysql.connect(**address, autocommit=autocommit)) as connection:
        yield connection


def lane(epoch: int) -> udf.SinkLane:
    return udf.SinkLane(NAME, epoch, udf.Context())


def write(connection: Any, table: udf.PositionTable, number: int, position: bytes) -> None:
    with connection.cursor() as cursor:
        cursor.execute("INSERT INTO numbers VALUES (%s)", (number,))
    table.store(position)
    connection.commit()


@pytest.mark.guarantee("I1")
def test_records_and_position_are_one_transaction_of_the_newest_owner(database: MariaDatabase) -> None:
    with connected(database) as first, connected(database) as second:
        old, new = udf.PositionTable(first), udf.PositionTable(second)
        assert old.open(lane(1)) is None
        write(first, old, 1, b"one")
        # Again the same: the server changes no row.
        write(first, old, 2, b"one")
        # A function may read in its transaction, from a snapshot in which the lane is still its own.
        with first.cursor() as cursor:
            cursor.execute("SELECT * FROM millstream_sink_positions")
        assert new.open(lane(2)) == b"one"
        with pytest.raises(udf.Fenced, match="another epoch of lane"):
            write(first, old, 3, b"two")
        write(second, new, 4, b"three")
        for epoch in (1, 2):
            with pytest.raises(udf.Fenced, match="or a higher one") as caught:
                old.open(lane(epoch))
            assert caught.value.position == b"three"
        # What is not committed is not there, nor is its position.
        with second.cursor() as cursor:
            cursor.execute("INSERT INTO numbers VALUES (5)")
        new.store(b"four")
        second.rollback()
        assert new.open(lane(3)) == b"three"
    assert sorted(database.rows("SELECT n FROM numbers")) == [(1,), (2,), (4,)]


def test_a_connection_in_autocommit_mode_is_refused(database: MariaDatabase) -> None:
    with (
        connected(database, autocommit=True) as connection,
        pytest.raises(RuntimeError, match="open it without autocommit"),
    ):
        udf.PositionTable(connection).open(lane(1))
