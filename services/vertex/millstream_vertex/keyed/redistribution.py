"""Moves what a vertex remembers to the lanes that its keys have with another number of partitions.

    entries of all lanes ─► into the lanes of their keys ─► all committed ─► out of the other lanes

Those of tables are the same in all lanes, and a lane that is new gets them from the first one.

Every entry is in at least one lane at any time, and if it is in several, it is the same in each: no record is processed
before everything is moved. So a move that was interrupted is made again, also towards another number of partitions.

Above it: changes of a pipeline. Below it: the states of its lanes.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from millstream.clock import START_OF_TIME_US
from millstream.frame import partition_of
from millstream.wire.state.v1 import state_pb2
from millstream_vertex.keyed.image import stored_of
from millstream_vertex.keyed.keys import is_of_table, parts_of
from millstream_vertex.keyed.owned import OwnedState
from millstream_vertex.keyed.state import EntryChange


def home_of(key: bytes, partitions: int) -> int:
    """The partition of the records with a key. Those without keys have any, and what is remembered for them is in the
    first one."""
    parts = parts_of(key)
    return partition_of(parts, partitions) if parts else 0


def check_room(lanes: Sequence[OwnedState], partitions: int) -> None:
    """Raise `UserError` if the limits do not allow the move. `lanes`: by partition, all that may have entries, and all
    that there will be."""
    for home in lanes[:partitions]:
        # While it is made, a move may exceed them: that is why there are more partitions.
        home.check([*_arrivals(lanes, home, partitions), *_departures(home, partitions)])


async def redistribute(lanes: Sequence[OwnedState], partitions: int) -> int:
    """Move every entry to the lane of its key. `lanes`: see `check_room`. Returns how many entries are in another lane
    now."""
    for home in lanes[:partitions]:
        await home.apply(list(_arrivals(lanes, home, partitions)))
    # From here on, every entry is where it belongs.
    moved = 0
    for lane in lanes:
        moved += await lane.apply(list(_departures(lane, partitions)))
    return moved


def _arrivals(lanes: Sequence[OwnedState], home: OwnedState, partitions: int) -> Iterator[EntryChange]:
    """The entries of other lanes whose keys belong to this one."""
    for lane in lanes:
        if lane is home:
            continue
        numbers: dict[int, int] = {}
        for key, number, item, stored in lane.keyed.all():
            is_copied = is_of_table(key) and lane is lanes[0]
            if not is_copied and (is_of_table(key) or home_of(key, partitions) != home.lane.partition):
                continue
            if number not in numbers:
                numbers[number] = home.keyed.adopt(lane.keyed.stored[number])
            yield EntryChange(key, numbers[number], item, stored_of(*stored))


def _departures(lane: OwnedState, partitions: int) -> Iterator[EntryChange]:
    """The entries of a lane whose keys belong to another one."""
    for key, number, item, _ in lane.keyed.all():
        if is_of_table(key):
            leaves = lane.lane.partition >= partitions
        else:
            leaves = home_of(key, partitions) != lane.lane.partition
        if leaves:
            yield EntryChange(key, number, item, None)


def expired_until(states: bytes, watermark_us: int) -> bytes:
    """The states in a mark, with the watermark by which entries have expired wherever they were before."""
    message = state_pb2.KeyedState.FromString(states)
    message.expired_until_us = watermark_us
    return message.SerializeToString()


def expired_until_of(states: bytes) -> int:
    """That watermark, if it is known."""
    message = state_pb2.KeyedState.FromString(states)
    return message.expired_until_us if message.HasField("expired_until_us") else START_OF_TIME_US
