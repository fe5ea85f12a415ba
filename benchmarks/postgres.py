"""How fast the PostgreSQL sink is, beside plain COPY by the same client in the same run.

    python benchmarks/postgres.py [--records N] [--rounds N] [--modes insert,upsert]

All write the same rows in transactions of the same size into tables of one server, in turns: plain COPY with its rows
as Python values beforehand, plain COPY that reads them from the JSON that the sink is given, and the sink's lane, which
also keeps its position. Rates count wall time, which says little on a machine that others use; so the shares are also
of the processor seconds of client and server together. Shares are the median of the rounds.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import statistics
import sys
import time
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import NamedTuple

from pydantic_core import from_json

if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from millstream.limits import FRAME_RECORDS_MAX
from millstream.record import Position
from millstream_connectors.opening_sinks import open_sink
from millstream_writer.sink import SinkFrame
from tests.contract.sinks.file_target import sink_owner
from tests.contract.sinks.sink_targets import postgres_spec
from tests.support.postgres_server import Database, PostgresServer, open_postgres, why_missing
from tests.unit.writer.sink_frames import sink_frame

FRAMES_A_WRITE = 4
TABLE = "(id bigint, city text, price double precision, paid boolean)"
COLUMNS = [{"name": name} for name in ("id", "city", "price", "paid")]

Row = tuple[int, str, float, bool]


def rows_of(records: int) -> list[Row]:
    """Rows of about 100 bytes of JSON."""
    return [(n, f"a city with the number {n % 1000}", n / 7, n % 3 == 0) for n in range(records)]


def frames_of(rows: Sequence[Row]) -> list[SinkFrame]:
    """The same as records."""
    values = [json.dumps(dict(zip(("id", "city", "price", "paid"), row, strict=True))).encode() for row in rows]
    starts = range(0, len(values), FRAME_RECORDS_MAX)
    return [sink_frame(values[start : start + FRAME_RECORDS_MAX], number + 1) for number, start in enumerate(starts)]


class Took(NamedTuple):
    """Seconds."""

    wall: float
    client: float
    """Of the processor, in this process."""
    server: float
    """Of the processor, in the server's."""

    def line(self, name: str, records: int) -> str:
        rate = f"{records / self.wall:10,.0f} records/s"
        return f"{name:10}  {rate}  processor: client {self.client:.2f} s, server {self.server:.2f} s"


async def timed(server: PostgresServer, call: Callable[[], Awaitable[None]]) -> Took:
    wall, cpu, at_server = time.perf_counter(), time.process_time(), server.processor_s()
    await call()
    return Took(time.perf_counter() - wall, time.process_time() - cpu, server.processor_s() - at_server)


async def plain(database: Database, rows: Sequence[Row], values: Sequence[bytes] = ()) -> Took:
    """COPY as the client has it; with `values`, of what is in that JSON."""
    size = FRAMES_A_WRITE * FRAME_RECORDS_MAX
    await database.execute("DROP TABLE IF EXISTS plain", f"CREATE TABLE plain {TABLE}")
    async with database.connected() as connection:

        async def copy() -> None:
            for start in range(0, len(rows), size):
                part = rows[start : start + size]
                if values:
                    members = map(from_json, values[start : start + size])
                    part = [(row["id"], row["city"], row["price"], row["paid"]) for row in members]
                async with connection.transaction():
                    await connection.copy_records_to_table("plain", records=part)

        return await timed(database.server, copy)


async def sink(database: Database, frames: Sequence[SinkFrame], mode: str, epoch: int) -> Took:
    """The lane of a sink, without what is around it."""
    key = ", PRIMARY KEY (id)" if mode == "upsert" else ""
    await database.execute("DROP TABLE IF EXISTS t", f"CREATE TABLE t {TABLE[:-1]}{key})")
    await database.execute("DROP TABLE IF EXISTS millstream_positions, millstream_positions_refused")
    keys = ["id"] if mode == "upsert" else []
    spec = postgres_spec(database, mode, table="t", columns=COLUMNS, keys=keys)
    async with open_sink(spec, sink_owner(epoch)) as lane:

        async def write() -> None:
            for start in range(0, len(frames), FRAMES_A_WRITE):
                part = frames[start : start + FRAMES_A_WRITE]
                assert not (await lane.write(part, Position(part[-1].sequence))).failures

        return await timed(database.server, write)


async def measure(records: int, rounds: int, modes: Sequence[str]) -> None:
    rows = rows_of(records)
    frames = frames_of(rows)
    values = [value for frame in frames for value in frame.frame.values()]
    with open_postgres(fsync="on") as server:
        database = await server.database()
        walls: dict[str, list[float]] = {mode: [] for mode in modes}
        processors: dict[str, list[float]] = {mode: [] for mode in modes}
        from_json_too: dict[str, list[float]] = {mode: [] for mode in modes}
        for number in range(rounds):
            took = await plain(database, rows)
            print(took.line("plain COPY", records))
            parsed = await plain(database, rows, values)
            print(parsed.line("from JSON", records))
            for mode in walls:
                own = await sink(database, frames, mode, number + 1)
                assert (await database.column("SELECT count(DISTINCT id) = count(*) FROM t")) == [True]
                assert (await database.column("SELECT count(*) FROM t")) == [records]
                print(own.line(mode, records))
                walls[mode].append(took.wall / own.wall)
                for found, other in ((processors, took), (from_json_too, parsed)):
                    found[mode].append((other.client + other.server) / (own.client + own.server))
    for mode in walls:
        wall, processor = statistics.median(walls[mode]), statistics.median(processors[mode])
        parsing = statistics.median(from_json_too[mode])
        print(f"{mode}: {wall:.0%} of plain COPY by wall time, {processor:.0%} by processor time; ", end="")
        print(f"{parsing:.0%} by processor time of one that reads the JSON (of {rounds} rounds)")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--records", type=int, default=200_000)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--modes", default="insert,upsert")
    options = parser.parse_args()
    if why := why_missing():
        sys.exit(why)
    asyncio.run(measure(options.records, options.rounds, options.modes.split(",")))


if __name__ == "__main__":
    main()
