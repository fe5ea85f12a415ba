"""The suite that other people's sinks run, on sinks of tables and NATS: killed at calls, two owners, a target that is
away."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import count
from pathlib import Path
from typing import Any, ClassVar

import pytest

from millstream.nats.client import Msg
from millstream_testing import SinkConformance
from tests.contract.sinks.file_target import COLUMNS
from tests.contract.sinks.sink_targets import MARIA_NUMBERS, delta_numbers, iceberg_numbers, maria_numbers, sqlite_rows
from tests.support.mariadb_server import LOCKED, MariaDatabase, MariaServer
from tests.support.nats_outside import NatsAtOnce, open_nats_at_once
from tests.support.rerouting import rerouted
from tests.support.sizes import sized

_PLAIN = [{"name": "n"}]

# Only `make test-all` takes a minute for each.
SinkConformance.away_s = sized(0, 60)
SinkConformance.deaths = SinkConformance.deaths[sized(1, 0) : sized(3, 7)]


class TestSqlite(SinkConformance):
    def settings(self, place: Path) -> Mapping[str, Any]:
        sqlite_rows(place / "shop.db", "CREATE TABLE numbers (n INTEGER UNIQUE, place INTEGER PRIMARY KEY)")
        return {"sql": {"url": "sqlite:///shop.db", "table": "numbers", "columns": _PLAIN}}

    def arrived(self, place: Path) -> Sequence[int]:
        return [n for (n,) in sqlite_rows(place / "shop.db", "SELECT n FROM numbers ORDER BY place")]


@pytest.mark.sweep
class TestMariaDb(SinkConformance):
    server: ClassVar[MariaServer]
    database: ClassVar[MariaDatabase]

    @pytest.fixture(autouse=True)
    def _server(self, mariadb: MariaServer) -> None:
        type(self).server = mariadb

    def settings(self, place: Path) -> Mapping[str, Any]:
        database = self.server.database()
        database.execute(MARIA_NUMBERS)
        type(self).database = database
        return {"sql": {**database.settings, "table": "numbers", "columns": _PLAIN}}

    def arrived(self, place: Path) -> Sequence[int]:
        return maria_numbers(self.database)

    def stop_target(self, place: Path) -> bool:
        self.server.kill()
        return True

    def start_target(self, place: Path) -> None:
        self.server.start()

    def rerouted(self, settings: Mapping[str, Any], reroute: Callable[[int], int]) -> Mapping[str, Any]:
        return rerouted(settings, self.server.port, reroute)

    def refused_settings(self, place: Path) -> tuple[Mapping[str, Any], str] | None:
        wrong = {"user": LOCKED, "password": "wr0ng-s3cret", "table": "numbers", "columns": _PLAIN}
        return {"sql": {**self.database.settings, **wrong}}, "wr0ng-s3cret"


class _Collecting(SinkConformance):
    """Of tables that have no order."""

    def _commits(self) -> dict[str, Any]:
        return {"columns": COLUMNS, "commitEvery": "1h", "maxRecords": 30}


class TestDelta(_Collecting):
    def settings(self, place: Path) -> Mapping[str, Any]:
        return {"delta": {"path": "table", **self._commits()}}

    def arrived(self, place: Path) -> Sequence[int]:
        return delta_numbers(place / "table")


@pytest.mark.timeout(900)
@pytest.mark.sweep
class TestIceberg(_Collecting):
    """Each of the processes that are killed imports PyIceberg, which takes two seconds of processor time."""

    def settings(self, place: Path) -> Mapping[str, Any]:
        catalog = {"sqlite": "catalog.db", "warehouse": "warehouse"}
        return {"iceberg": {"catalog": catalog, "table": "shop.numbers", **self._commits()}}

    def arrived(self, place: Path) -> Sequence[int]:
        return iceberg_numbers(place)


class _OfNats(SinkConformance):
    """On a server of its own, because tests kill it."""

    nats: ClassVar[NatsAtOnce]
    names: ClassVar[Iterator[int]] = count()
    name = ""
    """Of what a place writes to."""

    @pytest.fixture(autouse=True)
    def _server(self, tmp_path: Path) -> Iterator[None]:
        with open_nats_at_once(tmp_path / "nats") as nats:
            type(self).nats = nats
            yield

    def stop_target(self, place: Path) -> bool:
        self.nats.run(self.nats.outside.server.kill())
        return True

    def start_target(self, place: Path) -> None:
        self.nats.run(self.nats.outside.server.start())
        self.nats.run(self.nats.outside.connection.connected())

    def _wrong(self, place: Path) -> dict[str, Any]:
        (place / "wrong").write_text("wr0ng-s3cret")
        user = self.nats.outside.server.access.user
        return {**self.nats.outside.settings, "auth": {"basic": {"user": user, "password": {"file": "wrong"}}}}


class TestJetStream(_OfNats):
    """With positions in the stream."""

    more: ClassVar[dict[str, str]] = {"positions": "at"}

    def settings(self, place: Path) -> Mapping[str, Any]:
        self.name = f"s{next(self.names)}"
        creating = self.nats.outside.create(self.name, f"{self.name}.>", allow_atomic=True, allow_rollup_hdrs=True)
        self.nats.run(creating)
        return {"jetstream": {**self.nats.outside.settings, **self._subjects()}}

    def arrived(self, place: Path) -> Sequence[int]:
        values = self.nats.run(self.nats.outside.values(self.name, f"{self.name}.new"))
        return [json.loads(value)["n"] for value in values]

    def refused_settings(self, place: Path) -> tuple[Mapping[str, Any], str] | None:
        return {"jetstream": {**self._wrong(place), **self._subjects()}}, "wr0ng-s3cret"

    def _subjects(self) -> dict[str, str]:
        return {"subject": f"{self.name}.new", **{key: f"{self.name}.{part}" for key, part in self.more.items()}}


@pytest.mark.sweep
class TestJetStreamIds(TestJetStream):
    """With ids of messages, which the stream remembers for two minutes."""

    more: ClassVar[dict[str, str]] = {}


class TestNats(_OfNats):
    """Without a stream: what a subscriber gets that is always there when records are sent."""

    def settings(self, place: Path) -> Mapping[str, Any]:
        self.name = f"n{next(self.names)}"
        self.got: asyncio.Queue[Msg] = asyncio.Queue()
        self.nats.run(self._subscribe())
        return {"nats": {**self.nats.outside.settings, "subject": self.name, "timeout": "1s"}}

    def arrived(self, place: Path) -> Sequence[int]:
        return self.nats.run(self._taken())

    def refused_settings(self, place: Path) -> tuple[Mapping[str, Any], str] | None:
        return {"nats": {**self._wrong(place), "subject": self.name}}, "wr0ng-s3cret"

    def stop_target(self, place: Path) -> bool:
        # What the server has not sent to the subscriber yet would be gone with it.
        self.nats.run(self.nats.outside.connection.client.flush())
        return super().stop_target(place)

    def start_target(self, place: Path) -> None:
        super().start_target(place)
        # The subscription is renewed.
        self.nats.run(self.nats.outside.connection.client.flush())

    async def _subscribe(self) -> None:
        await self.nats.outside.connection.client.subscribe(self.name, cb=self.got.put)
        await self.nats.outside.connection.client.flush()

    async def _taken(self) -> list[int]:
        """Everything before a message of its own, which the server sends last."""
        await self.nats.outside.connection.publish(self.name, b"")
        found: list[int] = []
        while data := (await asyncio.wait_for(self.got.get(), 20)).data:
            found.append(json.loads(data)["n"])
        return found
