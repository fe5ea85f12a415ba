"""How fast changes of PostgreSQL are read, beside `pg_recvlogical` into a file; and what an idle slot holds.

    python benchmarks/postgres_cdc.py [--records N] [--rounds N]
    python benchmarks/postgres_cdc.py --idle SECONDS

Both read the same insertions from slots of their own, in turns: `pg_recvlogical` writes what the server sends into a
file, and the source's lane makes records of it, whose frames are written into a file, too. Shares are of wall time, and
of the processor seconds of client and server together; they are the median of the rounds.

With `--idle` a lane follows a table that does not change, and another table is written all the time. The largest part
of the server's log that the slot held is printed; it exits with 1 where that is 64 MiB or more.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any, NamedTuple

if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from tests.contract.sources.lanes import open_lane
from tests.support.postgres_server import USER, Database, open_postgres, programs, why_missing

TABLE = "CREATE TABLE orders (id bigserial PRIMARY KEY, city text, price double precision, paid boolean)"
FILL = """
INSERT INTO orders (city, price, paid)
SELECT 'a city with the number ' || n % 1000, n / 7.0, n % 3 = 0 FROM generate_series({first}, {last}) n
"""
A_TRANSACTION = 10_000
HELD = (
    "SELECT pg_wal_lsn_diff(pg_current_wal_lsn(), restart_lsn)::bigint FROM pg_replication_slots WHERE slot_name = 's'"
)
HELD_MAX = 64 << 20


class Took(NamedTuple):
    """Seconds."""

    wall: float
    client: float
    server: float

    def line(self, name: str, records: int) -> str:
        rate = f"{records / self.wall:10,.0f} changes/s"
        return f"{name:16}{rate}  processor: client {self.client:.2f} s, server {self.server:.2f} s"


def spec(database: Database, slot: str) -> dict[str, Any]:
    cdc = {"publication": "p", "slot": slot, "snapshot": "never"}
    return {"postgres": {**database.settings, "cdc": cdc, "stopAtEnd": True}}


def by_client(database: Database, slot: str, end: str, target: Path) -> Took:
    """What the server's own client takes."""
    found = programs()
    assert found is not None
    address = ["-h", "127.0.0.1", "-p", str(database.server.port), "-U", USER, "-d", database.name]
    options = ["-o", "proto_version=1", "-o", "publication_names=p", "-f", str(target), "--endpos", end]
    before, at_server = resource.getrusage(resource.RUSAGE_CHILDREN), database.server.processor_s()
    started = time.perf_counter()
    subprocess.run([str(found / "pg_recvlogical"), *address, "--slot", slot, "--start", *options], check=True)
    wall = time.perf_counter() - started
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    client = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return Took(wall, client, database.server.processor_s() - at_server)


async def by_lane(database: Database, slot: str, target: Path, records: int) -> Took:
    """What a lane of the source takes, without what is around it."""
    at_server, client, started = database.server.processor_s(), time.process_time(), time.perf_counter()
    read = 0
    with target.open("wb") as file:
        async with open_lane(spec(database, slot)) as lane:
            while True:
                batch = await lane.read(4096, 1 << 20, 0.2)
                if batch.frame is not None:
                    read += batch.frame.records
                    file.write(batch.frame.encode())
                await lane.committed(batch.position)
                if batch.ended:
                    break
            wall = time.perf_counter() - started
    assert read == records, f"{read} of {records}"
    return Took(wall, time.process_time() - client, database.server.processor_s() - at_server)


async def measure(records: int, rounds: int) -> None:
    walls: list[float] = []
    processors: list[float] = []
    with open_postgres(wal_level="logical", max_wal_size="4GB") as server, tempfile.TemporaryDirectory() as directory:
        database = await server.database()
        await database.execute(TABLE, "CREATE PUBLICATION p FOR TABLE orders")
        slots = [f"{kind}{number}" for number in range(rounds) for kind in ("client", "lane")]
        for slot in slots:
            await database.execute(f"SELECT pg_create_logical_replication_slot('{slot}', 'pgoutput')")
        for first in range(0, records, A_TRANSACTION):
            last = min(records, first + A_TRANSACTION)
            await database.execute(FILL.format(first=first + 1, last=last))
        await database.execute("CHECKPOINT")
        (end,) = await database.column("SELECT pg_current_wal_flush_lsn()::text")
        for number in range(rounds):
            target = Path(directory) / f"t{number}"
            client = by_client(database, f"client{number}", end, target)
            print(client.line("pg_recvlogical", records))
            lane = await by_lane(database, f"lane{number}", target, records)
            print(lane.line("lane", records))
            walls.append(client.wall / lane.wall)
            processors.append((client.client + client.server) / (lane.client + lane.server))
    print(
        f"{statistics.median(walls):.0%} of pg_recvlogical by wall time, {statistics.median(processors):.0%} by "
        f"processor time (of {rounds} rounds)"
    )


async def idle(seconds: float) -> int:
    """The largest part of the log that an idle slot held."""
    with open_postgres(wal_level="logical") as server:
        database = await server.database()
        await database.execute(
            TABLE,
            "CREATE TABLE others (id bigserial PRIMARY KEY, text text)",
            "CREATE PUBLICATION p FOR TABLE orders",
        )
        held: list[int] = []
        written = 0
        until = time.monotonic() + seconds
        settings = spec(database, "s")
        settings["postgres"]["stopAtEnd"] = False
        async with open_lane(settings) as lane:

            async def follow() -> None:
                while time.monotonic() < until:
                    await lane.committed((await lane.read(4096, 1 << 20, 0.2)).position)

            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(follow())
                async with database.connected() as connection:
                    while time.monotonic() < until:
                        await connection.execute(
                            "INSERT INTO others (text) SELECT repeat('x', 1000) FROM generate_series(1, 500)"
                        )
                        written += 500 * 1000
                        held.append(await connection.fetchval(HELD) or 0)
                        await asyncio.sleep(0.25)
        print(f"{written >> 20} MiB written into another table in {seconds:.0f} s; ", end="")
        print(
            f"the slot held {max(held) / (1 << 20):.1f} MiB of the log at most, {held[-1] / (1 << 20):.1f} at the end"
        )
        return int(max(held) >= HELD_MAX)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--records", type=int, default=300_000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--idle", type=float, help="seconds")
    options = parser.parse_args()
    if why := why_missing():
        sys.exit(why)
    print(f"load: {', '.join(f'{load:.1f}' for load in os.getloadavg())}")
    if options.idle is not None:
        sys.exit(asyncio.run(idle(options.idle)))
    asyncio.run(measure(options.records, options.rounds))


if __name__ == "__main__":
    main()
