"""Memory, time and disk of the record ids that a source remembers.

    python benchmarks/remembered_ids.py [--ids N] [--together N] [--json]

Ids like those of senders (UUIDs) are admitted as a source lane does, frame by frame, over one time to live, and looked
up again; then stored in a ledger of a real broker, so many together, and loaded as a lane does that opens. Memory is
that of the process, before and after.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import json
import random
import sys
import tempfile
import time
from array import array
from pathlib import Path
from uuid import UUID

import psutil

from millstream.frame import Frame, build_frame
from millstream.ledger.protocol import DurabilityLevel, LedgerLimits
from millstream.nats.connection import open_connection
from millstream.record import ID_DIGEST_BYTES, LaneId, id_digest
from millstream_reader.ids import SeenIds
from tests.support.ledgers import LaneOwner, SettableClock, open_jetstream_harness

FRAME_RECORDS = 1000
TTL_S = 86_400.0
LANE = LaneId("v", "source", 0)


def frame_of(seed: int, count: int) -> Frame:
    """Records with ids that the seed decides."""
    rng = random.Random(seed)
    ids = [str(UUID(int=rng.getrandbits(128))).encode() for _ in range(count)]
    return build_frame([b""] * count, array("q", [0] * count), ingest_time_us=0, ids=ids)


def in_memory(count: int) -> dict[str, float]:
    """Admitted over one time to live, then looked up."""
    clock = SettableClock()
    process = psutil.Process()
    frame_of(0, FRAME_RECORDS)
    gc.collect()
    before = process.memory_info().rss
    seen = SeenIds(ttl_s=TTL_S, ids_max=count, clock=clock)
    spent_s = 0.0
    for number in range(0, count, FRAME_RECORDS):
        frame = frame_of(number, min(FRAME_RECORDS, count - number))
        begun_s = time.process_time()
        seen.admit(frame)
        spent_s += time.process_time() - begun_s
        clock.time_s += TTL_S * FRAME_RECORDS / count
    gc.collect()
    held = process.memory_info().rss - before
    begun_s = time.process_time()
    repeated = seen.admit(frame_of(count // 2 // FRAME_RECORDS * FRAME_RECORDS, FRAME_RECORDS)).repeated
    if repeated != FRAME_RECORDS or len(seen) != count:
        raise AssertionError(f"{repeated} of {FRAME_RECORDS} were known, {len(seen)} of {count} are remembered")
    return {
        "ids": count,
        "mib_per_million": held / (1 << 20) / count * 1e6,
        "admit_us": spent_s / count * 1e6,
        "known_us": (time.process_time() - begun_s) / FRAME_RECORDS * 1e6,
    }


async def in_ledger(count: int, together: int, directory: Path) -> dict[str, float]:
    """Stored so many at a time, and loaded."""
    async with open_jetstream_harness(directory, DurabilityLevel.PROCESS) as harness:
        ledger = await harness.broker.ledger("v", LedgerLimits(frames_per_buffer_max=100_000))
        owner = LaneOwner(ledger, LANE, await ledger.take_over(LANE, "benchmark"))
        for number in range(0, count, together):
            await owner.commit(ids=tuple(str(one) for one in range(number, min(count, number + together))))
        async with open_connection(harness.server.access) as connection:
            held = (await connection.api("STREAM.INFO.p-v"))["state"]["bytes"]
        seen = SeenIds(ttl_s=TTL_S, ids_max=count, clock=SettableClock())
        begun_s = time.monotonic()
        async for stored in ledger.ids(LANE):
            seen.restore(stored.digests, stored.age_s)
        loaded_s = time.monotonic() - begun_s
    if len(seen) != count or seen.has_room([str(count).encode()], count):
        raise AssertionError(f"{len(seen)} of {count} were loaded")
    assert len(id_digest(b"")) == ID_DIGEST_BYTES
    return {"stored": count, "together": together, "bytes_each": held / count, "load_s": loaded_s}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ids", type=int, default=1_000_000)
    parser.add_argument("--together", type=int, default=1000, help="ids of one commit in the ledger")
    parser.add_argument("--json", action="store_true", help="one object on the last line")
    options = parser.parse_args()
    found = in_memory(options.ids)
    with tempfile.TemporaryDirectory(prefix="millstream-ids-") as name:
        found |= asyncio.run(in_ledger(min(options.ids, 1000 * options.together), options.together, Path(name)))
    print(
        f"{found['ids']:,} ids: {found['mib_per_million']:.1f} MiB a million, {found['admit_us']:.2f} us to admit one, "
        f"{found['known_us']:.2f} us to know one again"
    )
    print(
        f"in the ledger, {found['together']:,} at a time: {found['bytes_each']:.1f} bytes each; "
        f"{found['stored']:,} loaded in {found['load_s']:.2f} s"
    )
    if options.json:
        print(json.dumps(found))
    return 0


if __name__ == "__main__":
    sys.exit(main())
