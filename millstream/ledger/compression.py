"""Compression of stored frames. Pure, except that it looks for the package of a codec.

A stored frame, or a pack of several, is compressed as a whole: keys, times and values beside each other get smaller
than the payload of each record would. What is stored says how it is compressed, so a pipeline may change its
`compression` at any time, and no reader has to know it.

Above it: the committer, which compresses, and the decoding of stored frames. Below it: the libraries of the codecs.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Mapping
from types import ModuleType
from typing import NamedTuple

import lz4.block
from google.protobuf.message import DecodeError

from millstream import codes
from millstream.compression import Compression
from millstream.errors import DamageError, UserError
from millstream.limits import KIB, MESSAGE_BYTES_MAX
from millstream.wire.ledger.v1 import compressed_pb2
from millstream_udf.fields import Data, field, without_large

COMPRESSED_BYTES_MIN = 4 * KIB
"""Smaller frames and packs are stored as they are."""
_SHARE_MAX = 0.85
"""What has to be left of the bytes at most: reading them again and decompressing them costs time, too."""
_PAUSE_MAX = 64
"""Frames that are stored as they are, at most, before it is tried again whether the next one gets smaller."""
_LZ4_ACCELERATION = 2
"""Takes a tenth less time than 1, and leaves hardly more bytes."""
_ZSTD_LEVEL = 1
_GZIP_LEVEL = 1
_GZIP_BITS = zlib.MAX_WBITS | 16


class _Codec(NamedTuple):
    number: int
    """Number of its field in `CompressedFrames`."""
    compress: Callable[[Data], bytes]
    decompress: Callable[[Data, int], bytes]
    """For the compressed bytes and the size of the result. What it returns has that size only if they are right, and
    is at most one byte longer. Raises an error of its library, or `ValueError`."""


def _lz4_compressed(data: Data) -> bytes:
    return bytes(lz4.block.compress(data, mode="fast", acceleration=_LZ4_ACCELERATION, store_size=False))


def _lz4_decompressed(data: Data, size: int) -> bytes:
    return bytes(lz4.block.decompress(data, uncompressed_size=size))


def _zstandard() -> ModuleType:
    try:
        import zstandard
    except ModuleNotFoundError as error:
        raise UserError(
            codes.EXTRA_NEEDED,
            "frames that are compressed with zstd need the package zstandard, which is not installed here: "
            "`pip install 'millstream[zstd]'`",
        ) from error
    return zstandard


def _zstd_compressed(data: Data) -> bytes:
    return bytes(_zstandard().ZstdCompressor(level=_ZSTD_LEVEL).compress(data))


def _zstd_decompressed(data: Data, size: int) -> bytes:
    zstandard = _zstandard()
    try:
        with zstandard.ZstdDecompressor().stream_reader(data) as reader:
            return bytes(reader.read(size + 1))
    except zstandard.ZstdError as error:
        raise ValueError(str(error)) from error


def _gzip_compressed(data: Data) -> bytes:
    return zlib.compress(data, _GZIP_LEVEL, _GZIP_BITS)


def _gzip_decompressed(data: Data, size: int) -> bytes:
    unpacker = zlib.decompressobj(_GZIP_BITS)
    found = unpacker.decompress(data, size + 1)
    if not unpacker.eof:
        raise ValueError("they are not complete, or longer than they say")
    return found


_FIELDS = compressed_pb2.CompressedFrames
_CODECS: Mapping[Compression, _Codec] = {
    Compression.LZ4: _Codec(_FIELDS.LZ4_FIELD_NUMBER, _lz4_compressed, _lz4_decompressed),
    Compression.ZSTD: _Codec(_FIELDS.ZSTD_FIELD_NUMBER, _zstd_compressed, _zstd_decompressed),
    Compression.GZIP: _Codec(_FIELDS.GZIP_FIELD_NUMBER, _gzip_compressed, _gzip_decompressed),
}
_NAMES = {codec.number: name for name, codec in _CODECS.items()}
_FIRST_BYTE = _FIELDS(size=1).SerializeToString()[:1]
"""The first byte of compressed frames, which is neither that of a frame nor that of a pack."""


class Compressor:
    """Compresses what one lane stores, as long as that makes it smaller."""

    def __init__(self, compression: Compression) -> None:
        self._codec = _CODECS.get(compression)
        self._pause = 1
        self._passing = 0

    def stored(self, data: bytes) -> bytes:
        """What to store for an encoded frame or pack: itself if it is small, because a message costs more than its
        bytes, or if compression makes it hardly smaller, and for a while after that."""
        if self._codec is None or len(data) < COMPRESSED_BYTES_MIN:
            return data
        if self._passing:
            self._passing -= 1
            return data
        compressed = self._codec.compress(data)
        if len(compressed) > len(data) * _SHARE_MAX:
            self._passing, self._pause = self._pause, min(2 * self._pause, _PAUSE_MAX)
            return data
        self._pause = 1
        size = _FIELDS(size=len(data)).SerializeToString()
        return b"".join((size, *field(self._codec.number, compressed)))


def is_compressed(data: bytes) -> bool:
    """Whether these bytes were stored compressed."""
    return data[:1] == _FIRST_BYTE


def decompressed(data: bytes) -> bytes:
    """The encoded frame or pack that was stored as these bytes. Raises `DamageError` if they cannot be decompressed,
    and `UserError` if the package for that is not installed."""
    if not is_compressed(data):
        return data
    try:
        return _decompressed(data)
    except (DecodeError, ValueError, lz4.block.LZ4BlockError, zlib.error) as error:
        raise DamageError(codes.FRAME_UNREADABLE, f"{len(data)} bytes are not compressed frames: {error}") from error


def _decompressed(data: bytes) -> bytes:
    rest, large = without_large(data, _NAMES)
    message = _FIELDS.FromString(rest)
    if large:
        number, content = next(iter(large.items()))
        compression: Compression | None = _NAMES[number]
    else:
        written = message.WhichOneof("data")
        compression = Compression(written) if written is not None else None
        content = memoryview(getattr(message, written) if written is not None else b"")
    if compression is None:
        raise ValueError("they have no data in a known compression")
    if not 0 < message.size <= MESSAGE_BYTES_MAX:
        raise ValueError(f"they say that they had {message.size} bytes")
    found = _CODECS[compression].decompress(content, message.size)
    if len(found) != message.size:
        raise ValueError(f"they had {message.size} bytes, and {len(found)} could be decompressed")
    return found
