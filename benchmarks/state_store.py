"""What a state in memory and on disk costs a lane, beside plain LMDB with the same pairs.

    python benchmarks/state_store.py [--keys 1000000] [--seconds 10] [--batch 500]

A pair is a get and a put of 100 bytes under a random key: the entries of a call, its changes, and what they become in
the changelog and in the store. All results are committed at once. Plain LMDB has one transaction for each batch, not
synced either. Alternately, so that other work on the machine meets all of them; prints pairs per second of processor
time, and the memory of the process without what the system may take back (RssAnon).
"""

from __future__ import annotations

import argparse
import asyncio
import random
import shutil
import tempfile
import time
from array import array
from collections.abc import Callable, Iterator
from contextlib import AsyncExitStack
from pathlib import Path

import lmdb

from millstream.ledger.protocol import Witness
from millstream.udf.states import DeclaredState, StateChanges, StateKind
from millstream_vertex.keyed.disk.image import open_disk_image
from millstream_vertex.keyed.disk.store import StoreIdentity
from millstream_vertex.keyed.image import Image, Position, StateImage
from millstream_vertex.keyed.state import KeyedState
from millstream_vertex.keyed.steps import Entries, decode_step, encode_steps

VALUE_BYTES = 100
LANE = "in-v.0"
LOADED = 10_000
"""Keys of a step of the first changelog."""


def rss_anon_mib() -> float:
    """Memory that is not a file's."""
    for line in Path("/proc/self/status").read_text(encoding="ascii").splitlines():
        if line.startswith("RssAnon"):
            return int(line.split()[1]) / 1024
    return 0.0


def keys_of(numbers: range) -> list[bytes]:
    return [b"key-%012d" % number for number in numbers]


def position(number: int) -> Callable[[], Position]:
    return lambda: Position(Witness(LANE, number, number, number), ())


def changelog(keys: int) -> Iterator[bytes]:
    """Steps with a value for each key."""
    value = random.Random(1).randbytes(VALUE_BYTES)
    for start in range(0, keys, LOADED):
        entries = Entries()
        for key in keys_of(range(start, min(keys, start + LOADED))):
            entries.add(key, 0, b"", value, 0, 1)
        yield from encode_steps(entries)


def opened(image: Image) -> KeyedState:
    state = KeyedState("bench/v/in-v.0", size_max=1 << 50, key_size_max=1 << 20, image=image)
    state.declare([DeclaredState("last", StateKind.VALUE, "bytes")])
    return state


def loaded(state: KeyedState, keys: int) -> None:
    """Read the first changelog into it."""
    state.start_over()
    for number, data in enumerate(changelog(keys), 1):
        state.load(decode_step(data))
        state.reached(position(number))
    state.loaded()


class Pairs:
    """Pairs on a state."""

    def __init__(self, name: str, state: KeyedState, keys: int, batch: int) -> None:
        self.name = name
        self._state = state
        self._keys = keys
        self._batch = batch
        self._rng = random.Random(2)
        self._number = 1_000_000
        self.done, self.taken_s = 0, 0.0

    def run(self, seconds: float) -> None:
        rng, value = self._rng, bytearray(self._rng.randbytes(VALUE_BYTES))
        began, ends = time.process_time(), time.monotonic() + seconds
        while time.monotonic() < ends:
            keys = list({b"key-%012d" % rng.randrange(self._keys): None for _ in range(self._batch)})
            value[0] = (value[0] + 1) % 256
            self.pairs(keys, bytes(value))
            self.done += len(keys)
        self.taken_s += time.process_time() - began

    def pairs(self, keys: list[bytes], value: bytes) -> None:
        self._state.begin()
        entries = self._state.entries(keys, range(len(keys)), 0)
        assert len(entries.values) == len(keys)
        changes = StateChanges(array("I", range(len(keys))), bytes(len(keys)), [], [value] * len(keys))
        assert self._state.apply(keys, changes) is None
        self._state.take_steps()
        self._number += 1
        self._state.committed(1, position(self._number))


class PlainPairs(Pairs):
    """Pairs on LMDB."""

    def __init__(self, environment: lmdb.Environment, keys: int, batch: int) -> None:
        self._environment = environment
        self.name = "LMDB"
        self._keys = keys
        self._batch = batch
        self._rng = random.Random(2)
        self.done, self.taken_s = 0, 0.0

    def pairs(self, keys: list[bytes], value: bytes) -> None:
        with self._environment.begin(write=True) as transaction:
            for key in keys:
                assert transaction.get(key) is not None
                transaction.put(key, value)


def fill(environment: lmdb.Environment, keys: int) -> None:
    value = random.Random(1).randbytes(VALUE_BYTES)
    for start in range(0, keys, LOADED):
        with environment.begin(write=True) as transaction:
            for key in keys_of(range(start, min(keys, start + LOADED))):
                transaction.put(key, value)


async def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--keys", type=int, default=1_000_000)
    parser.add_argument("--seconds", type=float, default=10.0, help="for each")
    parser.add_argument("--batch", type=int, default=500, help="pairs of a result")
    parser.add_argument("--only-disk", action="store_true", help="without the state in memory")
    options = parser.parse_args()
    place = Path(tempfile.mkdtemp(prefix="state-store-"))
    try:
        async with AsyncExitStack() as stack:
            await compare(options, place, stack)
        await resume(place)
    finally:
        shutil.rmtree(place)


async def compare(options: argparse.Namespace, place: Path, stack: AsyncExitStack) -> None:
    identity = StoreIdentity("bench", LANE)
    before, began = rss_anon_mib(), time.process_time()
    disk = opened(await stack.enter_async_context(open_disk_image(place / "disk", identity, "bench")))
    loaded(disk, options.keys)
    loading = time.process_time() - began
    mib = disk.size / 2**20
    grown = rss_anon_mib() - before
    print(f"{options.keys:,} keys, {mib:.0f} MiB: loaded to disk in {loading:.1f} s, RssAnon +{grown:.0f} MiB")
    environment = stack.enter_context(
        lmdb.open(str(place / "plain"), map_size=1 << 36, sync=False, metasync=False, readahead=False)
    )
    fill(environment, options.keys)
    runs: list[Pairs] = [Pairs("disk", disk, options.keys, options.batch)]
    runs.append(PlainPairs(environment, options.keys, options.batch))
    before = rss_anon_mib()
    if not options.only_disk:
        memory = opened(StateImage())
        began = time.process_time()
        loaded(memory, options.keys)
        print(f"loaded to memory in {time.process_time() - began:.1f} s, RssAnon +{rss_anon_mib() - before:.0f} MiB")
        runs.append(Pairs("memory", memory, options.keys, options.batch))
    for one in runs:
        # The first result of a lane that has loaded everything is larger than all others.
        one.run(0.5)
        one.done, one.taken_s = 0, 0.0
    for _ in range(5):
        for one in runs:
            before = rss_anon_mib()
            one.run(options.seconds / 5)
            if one.name == "disk":
                grown = rss_anon_mib() - before
    rates = {one.name: one.done / one.taken_s for one in runs}
    for name, rate in rates.items():
        print(f"{name:7} {rate:9,.0f} pairs per second of processor time, {rate / rates['LMDB']:.2f} times plain LMDB")
    print(f"RssAnon of pairs on disk, in the last round: +{grown:.1f} MiB")
    files = sum(path.stat().st_size for path in (place / "disk").rglob("*.mdb")) / 2**20
    print(f"the store has {files:.0f} MiB, {files / mib:.2f} times the state")


async def resume(place: Path) -> None:
    began, wall = time.process_time(), time.monotonic()
    async with AsyncExitStack() as stack:
        image = await stack.enter_async_context(open_disk_image(place / "disk", StoreIdentity("bench", LANE), "bench"))
        state = opened(image)
        assert state.kept is not None
        state.resume()
        state.loaded()
        assert list(image.of_key(b"key-%012d" % 7))
        print(f"resumed in {time.monotonic() - wall:.3f} s, {time.process_time() - began:.3f} s of processor time")


if __name__ == "__main__":
    asyncio.run(main())
