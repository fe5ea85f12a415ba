"""Logs of a version in which several keys had the same name are continued, and keep their keys apart from then on.

`logs_of_format_3.json` was written by that version: a few records of each of `KEYS`, of which those in windows that end
by 112 are handed over and not committed, and then one more record of each. The keys of accumulating windows are only
every second one: that version had merged the others with them.
"""

from __future__ import annotations

import base64
import json
import zlib
from array import array
from collections.abc import Mapping
from pathlib import Path

import pytest

from millstream.clock import END_OF_TIME_US
from millstream.frame import Frame, build_frame
from millstream_reduce.group_keys import key_parts
from millstream_reduce.log.entries import FORMAT
from millstream_reduce.log.segments import mapped, read_header, segment_numbers, segment_path
from millstream_reduce.values import WindowTable
from millstream_reduce.windows import WindowConfig
from tests.unit.reduce.queued import Lane, values_in

WRITTEN = json.loads(Path(__file__).with_name("logs_of_format_3.json").read_text(encoding="utf-8"))
KEYS = ((b"a", b"b"), (b"a\x1fb",), (b"",), (), (b"x",))
CONFIGS = {
    "sessions": WindowConfig("session", timeout_us=10, keyed=True),
    "totals": WindowConfig("global", count=2, accumulate=True, keyed=True),
}


def frame_of_keys(times: Mapping[tuple[bytes, ...], int]) -> Frame:
    """A record of each key, at its time, which is its value."""
    values = [b"%d" % time for time in times.values()]
    return build_frame(values, array("q", times.values()), ingest_time_us=7, keys=list(times))


@pytest.mark.guarantee("I1", "I3")
@pytest.mark.parametrize("name", sorted(WRITTEN))
async def test_a_log_in_which_keys_had_the_same_name_is_continued(name: str, tmp_path: Path) -> None:
    kind = name.partition(",")[0]
    lane = Lane(tmp_path / "log", CONFIGS[kind], epoch=1)
    lane.directory.mkdir()
    for file, packed in WRITTEN[name]["files"].items():
        (lane.directory / file).write_bytes(zlib.decompress(base64.b85decode(packed)))
    lane.progress.ParseFromString(bytes.fromhex(WRITTEN[name]["progress"]))
    found: dict[tuple[bytes, ...], list[tuple[int, list[bytes]]]] = {}
    async with lane.opened() as queue:
        (pending,) = queue.pending()
        lane.append(queue, frame_of_keys({key: 1000 + 100 * place + 5 for place, key in enumerate(KEYS)}))
        await lane.commit(queue, pending)
    # What this version wrote is read back by it.
    async with lane.opened() as queue:
        hand_overs = [pending, *queue.close(END_OF_TIME_US)]
        for hand_over in hand_overs:
            for one in WindowTable.of_hand_over(hand_over):
                assert one.window.key is not None
                values = values_in(lane.directory, one)
                found.setdefault(key_parts(one.window.key), []).append((one.window.early, values))
    for place, key in enumerate(KEYS):
        first = [b"%d" % time for time in range(100 * place, 100 * place + 3)]
        second = [b"%d" % (1000 + 100 * place), b"%d" % (1005 + 100 * place)]
        if kind == "sessions":
            assert found.pop(key) == [(0, first), (0, second)], key
        elif place % 2:
            assert found.pop(key) == [(0, second[1:])], key
        else:
            assert found.pop(key) == [(1, first[:2]), (2, [*first, second[0]]), (0, first + second)], key
    assert not found
    newest = segment_path(lane.directory, max(segment_numbers(lane.directory)))
    with mapped(newest) as data:
        assert read_header(newest, data).segment.format == FORMAT
