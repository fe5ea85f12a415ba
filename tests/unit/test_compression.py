"""What is stored compressed, what is not, and what a reader makes of it."""

from __future__ import annotations

import random
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from millstream import codes
from millstream.compression import Compression
from millstream.errors import DamageError
from millstream.frame import Frame
from millstream.ledger.compression import COMPRESSED_BYTES_MIN, Compressor, decompressed, is_compressed
from millstream.ledger.packs import Pack, frames_in, is_pack, shares_of
from millstream.limits import FRAME_BYTES_MAX, MESSAGE_BYTES_MAX
from millstream.wire.ledger.v1 import compressed_pb2
from millstream_vertex.lane import Lane
from millstream_writer.committer import Unit
from millstream_writer.routing import Route, Router
from tests.support.errors import raises
from tests.unit.vertex.lane_rig import INPUT, UPSTREAM, open_rig, open_stream, records_of

CODECS = [Compression.LZ4, Compression.ZSTD, Compression.GZIP]
FRAME = records_of(*(b"value %d of a frame" % number for number in range(500)))
PACK = Pack([FRAME, records_of(*(b"another %d" % number for number in range(3000)))])


def noise(number: int) -> bytes:
    return records_of(random.Random(number).randbytes(2 * COMPRESSED_BYTES_MIN)).encode()


@pytest.mark.parametrize("compression", CODECS)
@pytest.mark.parametrize("written", [FRAME, PACK], ids=["a frame", "a pack"])
def test_what_is_stored_is_smaller_and_read_as_it_was(compression: Compression, written: Frame | Pack) -> None:
    encoded = written.encode()
    stored = Compressor(compression).stored(encoded)
    assert len(stored) < len(encoded) // 2
    assert is_compressed(stored)
    assert not is_pack(stored)
    assert not is_compressed(encoded)
    assert decompressed(stored) == encoded
    assert decompressed(encoded) is encoded
    assert frames_in(stored) == ([written] if isinstance(written, Frame) else written.frames)
    message = compressed_pb2.CompressedFrames.FromString(stored)
    assert (message.size, message.WhichOneof("data")) == (len(encoded), compression.value)


def test_small_frames_are_stored_as_they_are() -> None:
    small = records_of(b"x" * (COMPRESSED_BYTES_MIN // 2)).encode()
    assert Compressor(Compression.LZ4).stored(small) is small
    large = records_of(b"x" * COMPRESSED_BYTES_MIN).encode()
    assert is_compressed(Compressor(Compression.LZ4).stored(large))
    assert Compressor(Compression.NONE).stored(large) is large


def test_what_hardly_gets_smaller_is_stored_as_it_is_and_tried_less_and_less_often() -> None:
    """Which frames are tried shows when, in between, one comes that would get smaller."""
    compressor = Compressor(Compression.LZ4)
    good = FRAME.encode()
    for pause in (1, 2, 4, 8, 16, 32, 64, 64, 64):
        bad = noise(pause)
        assert compressor.stored(bad) is bad
        for _ in range(pause):
            assert compressor.stored(good) is good, "it is not tried now"
    assert is_compressed(compressor.stored(good)), "it is tried again"
    bad = noise(0)
    assert compressor.stored(bad) is bad
    assert compressor.stored(good) is good
    assert is_compressed(compressor.stored(good)), "the pauses are short again"


@pytest.mark.guarantee("I10")
@pytest.mark.parametrize("compression", CODECS)
@given(data=st.data())
def test_damage_is_named(compression: Compression, data: st.DataObject) -> None:
    stored = Compressor(compression).stored(FRAME.encode())
    place = data.draw(st.integers(0, len(stored) - 1))
    changed = data.draw(
        st.one_of(
            st.just(stored[: place + 1]),
            st.integers(1, 255).map(lambda bits: stored[:place] + bytes([stored[place] ^ bits]) + stored[place + 1 :]),
            st.binary(min_size=1, max_size=20).map(lambda more: stored[: place + 1] + more + stored[place + 1 :]),
        )
    )
    try:
        found = frames_in(changed)
        for frame in found:
            frame.check()
    except (DamageError, ValueError):
        return
    # What the codec does not notice is the checksum of the server, but every record can be read.
    for frame in found:
        assert len(list(frame.to_records())) == frame.records


@pytest.mark.guarantee("I10")
@pytest.mark.parametrize("compression", CODECS)
@pytest.mark.parametrize("size", [0, 1, 5000, MESSAGE_BYTES_MAX, MESSAGE_BYTES_MAX + 1, (1 << 32) - 1])
def test_a_wrong_size_is_named_and_takes_no_memory(compression: Compression, size: int) -> None:
    message = compressed_pb2.CompressedFrames.FromString(Compressor(compression).stored(FRAME.encode()))
    message.size = size
    written = message.SerializeToString()
    if not size:
        # Protobuf does not write a zero, so the first byte is another.
        assert not is_compressed(written)
        written = compressed_pb2.CompressedFrames(size=1).SerializeToString()
    with raises(codes.FRAME_UNREADABLE, match="are not compressed frames"):
        frames_in(written)


@pytest.mark.guarantee("I10")
def test_a_compression_of_a_later_version_is_named() -> None:
    unknown = compressed_pb2.CompressedFrames(size=5000).SerializeToString() + b"\x7a\x03abc"
    with raises(codes.FRAME_UNREADABLE, match="no data in a known compression"):
        decompressed(unknown)


def test_a_package_that_is_missing_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    stored = Compressor(Compression.ZSTD).stored(FRAME.encode())
    monkeypatch.setitem(sys.modules, "zstandard", None)
    with raises(codes.EXTRA_NEEDED, match=r"pip install 'millstream\[zstd\]'"):
        frames_in(stored)
    with raises(codes.EXTRA_NEEDED, match=r"pip install 'millstream\[zstd\]'"):
        Compressor(Compression.ZSTD).stored(FRAME.encode())


@pytest.mark.guarantee("I2")
@given(st.lists(st.integers(1, 40), min_size=1, max_size=8), st.data())
def test_the_shares_of_the_frames_are_all_that_is_stored(records: list[int], data: st.DataObject) -> None:
    frames = [records_of(*[b"v"] * count) for count in records]
    stored = data.draw(st.integers(1, 2 * sum(frame.size for frame in frames)))
    shares = shares_of(frames, stored)
    assert sum(shares) == stored
    assert min(shares) >= 0
    if stored >= sum(frame.size for frame in frames):
        assert shares[:-1] == [frame.size for frame in frames[:-1]], "as earlier versions have counted them"


@pytest.mark.guarantee("I8")
async def test_what_is_in_flight_is_bounded_by_decoded_bytes() -> None:
    large = records_of(*[bytes(FRAME_BYTES_MAX // 100)] * 90)
    held: list[int] = []
    lanes: list[Lane] = []

    def looks(value: bytes) -> bytes:
        held.append(lanes[0].statistics().bytes_in_flight)
        return value

    async with open_rig() as rig:
        await rig.feed(large, ended=True)
        (stored,) = await (await rig.ledger("in")).peek(INPUT, 0, 10)
        assert len(stored.data) < large.size // 20
        async with open_stream(looks) as stream, rig.map_lane(stream, [Route("map-out", 1, None)]) as lane:
            lanes.append(lane)
            await lane.run()
    assert max(held) > large.size // 4


@pytest.mark.parametrize("compresses", [True, False])
async def test_a_lane_compresses_only_what_all_readers_understand(
    compresses: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with open_rig() as rig:
        ledger = await rig.ledger("in")
        monkeypatch.setattr(ledger, "compresses", compresses)
        committer = await rig.committer(UPSTREAM, Router([Route(INPUT.edge, 1, None)]))
        await committer.commit([Unit(source_position=b"", frames=[(INPUT, FRAME)])], watermark_us=0)
        (stored,) = await ledger.peek(INPUT, 0, 10)
        assert is_compressed(stored.data) == compresses
        assert frames_in(stored.data) == [FRAME]
        (written,) = committer.mark.written
        assert written.bytes == len(stored.data), "buffers and accounts have the bytes that are stored"
        assert committer.mark.written[0].records == FRAME.records
