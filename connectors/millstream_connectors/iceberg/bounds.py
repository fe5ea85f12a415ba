"""Bounds for the metadata of Iceberg tables.

pyiceberg decompresses a file of metadata, or a block of a manifest, whatever becomes of it: a kilobyte may stand for
gigabytes. It also makes objects of all entries of a manifest, or of a list of manifests, before anything uses the first
one. So files, blocks, and all entries of a file together have a limit. The source reads the entries of manifests one by
one, and of each only what it uses.

Above it: `client`, `files` and the source. Below it: pyiceberg.
"""

from __future__ import annotations

import bz2
import gzip
import zlib
from collections.abc import Iterator
from io import BytesIO
from typing import Any

import pyiceberg.manifest
from pyiceberg.avro.codecs import KNOWN_CODECS
from pyiceberg.avro.codecs.bzip2 import BZip2Codec
from pyiceberg.avro.codecs.deflate import DeflateCodec
from pyiceberg.avro.codecs.snappy_codec import SnappyCodec
from pyiceberg.avro.codecs.zstandard_codec import ZStandardCodec
from pyiceberg.avro.decoder import new_decoder
from pyiceberg.avro.file import SYNC_SIZE, AvroFile, Block, D
from pyiceberg.avro.reader import Reader, StructReader
from pyiceberg.io import FileIO
from pyiceberg.manifest import (
    DATA_FILE_TYPE,
    DEFAULT_READ_VERSION,
    MANIFEST_ENTRY_SCHEMAS,
    DataFile,
    DataFileContent,
    FileFormat,
    ManifestEntry,
    ManifestEntryStatus,
    ManifestFile,
)
from pyiceberg.serializers import GzipCompressor

from millstream.limits import TABLE_ENTRIES_BYTES_MAX, TABLE_METADATA_BYTES_MAX

_ENTRY_BYTES = 1024
"""What the objects of an entry take in addition to those of its values."""
_CONVERTED = 8
"""How much more a value takes as an object."""
_USED = ("content", "file_path", "file_format", "partition", "record_count")
"""What the source uses of a data file, up to the last one that it uses: pyiceberg finds them by their places."""
_DATA_FILE = 2
"""The number of the field of an entry that has them. It is the last one."""
_SCHEMA = MANIFEST_ENTRY_SCHEMAS[DEFAULT_READ_VERSION]
assert _SCHEMA.fields[-1].field_id == _DATA_FILE, "pyiceberg has another order of fields"
assert tuple(field.name for field in DATA_FILE_TYPE[DEFAULT_READ_VERSION].fields[: len(_USED)]) == _USED


def bound_metadata() -> None:
    """From now on, pyiceberg raises `ValueError` for metadata that takes more memory than the limits."""
    compressor: Any = GzipCompressor
    compressor.stream_decompressor = _decompressed
    KNOWN_CODECS.update({"deflate": _Deflate, "bzip2": _Bzip2, "snappy": _Snappy, "zstandard": _Zstandard})
    vars(pyiceberg.manifest)["AvroFile"] = _BoundedFile


class _BoundedFile(AvroFile[D]):
    """A manifest, or a list of manifests, all of whose entries will be in memory."""

    __slots__ = ("_taken",)

    def _read_block(self) -> int:
        if not self.block:
            self._taken = 0
        elif self.decoder.read(SYNC_SIZE) != self.header.sync:
            raise ValueError("a block of a manifest does not end with the mark of the file")
        entries, contents = self.decoder.read_int(), self.decoder.read_bytes()
        codec = self.header.compression_codec()
        contents = contents if codec is None else codec.decompress(contents)
        self._taken += max(0, entries) * _ENTRY_BYTES + len(contents) * _CONVERTED
        if self._taken > TABLE_ENTRIES_BYTES_MAX:
            what = "the entries of a manifest, or of a list of manifests, take more memory"
            raise ValueError(f"{what} than {TABLE_ENTRIES_BYTES_MAX} bytes, the limit. Rewrite the table's manifests")
        self.block = Block(reader=self.reader, block_records=entries, block_decoder=new_decoder(contents))
        return entries


def live_entries(manifest: ManifestFile, files: FileIO) -> Iterator[ManifestEntry]:
    """The entries of a manifest that are not deleted, one by one, without statistics."""
    with AvroFile[ManifestEntry](
        files.new_input(manifest.manifest_path),
        _SCHEMA,
        read_types={-1: ManifestEntry, _DATA_FILE: DataFile},
        read_enums={0: ManifestEntryStatus, 101: FileFormat, 134: DataFileContent},
    ) as entries:
        entries.reader = _without_statistics(entries.reader)
        for entry in entries:
            if entry.status != ManifestEntryStatus.DELETED:
                if entry.snapshot_id is None and manifest.added_snapshot_id is not None:
                    # An entry that its own snapshot has added.
                    entry.snapshot_id = manifest.added_snapshot_id
                yield entry


def _without_statistics(reader: Reader) -> Reader:
    """A reader of entries that skips what the source does not use of data files."""
    if not isinstance(reader, StructReader):
        raise ValueError("an entry of the manifest is not a record")
    fields = [
        (place, _narrow(inner) if place == len(reader.struct.fields) - 1 else inner)
        for place, inner in reader.field_readers
    ]
    return StructReader(tuple(fields), reader.create_struct, reader.struct)


def _narrow(reader: Reader) -> Reader:
    if not isinstance(reader, StructReader):
        raise ValueError("a data file of the manifest is not a record")
    used = len(_USED)
    fields = [(place if place is not None and place < used else None, inner) for place, inner in reader.field_readers]
    return StructReader(tuple(fields), reader.create_struct, reader.struct)


def check_metadata(size: int, what: str) -> None:
    """Raises `ValueError` for too many bytes."""
    if size > TABLE_METADATA_BYTES_MAX:
        raise ValueError(f"{what} has more than {TABLE_METADATA_BYTES_MAX} bytes, the limit")


def _decompressed(_: object, stored: Any) -> Any:
    with stored, gzip.open(stored) as file:
        contents = file.read(TABLE_METADATA_BYTES_MAX + 1)
    check_metadata(len(contents), "metadata of the table, decompressed,")
    return BytesIO(contents)


def _block(contents: bytes) -> bytes:
    check_metadata(len(contents), "a block of a manifest, decompressed,")
    return contents


class _Deflate(DeflateCodec):
    @staticmethod
    def decompress(data: bytes) -> bytes:
        return _block(zlib.decompressobj(-15).decompress(data, TABLE_METADATA_BYTES_MAX + 1))


class _Bzip2(BZip2Codec):
    @staticmethod
    def decompress(data: bytes) -> bytes:
        return _block(bz2.BZ2Decompressor().decompress(data, TABLE_METADATA_BYTES_MAX + 1))


class _Snappy(SnappyCodec):
    @staticmethod
    def decompress(data: bytes) -> bytes:
        check_metadata(_length(data), "a block of a manifest, decompressed,")
        return SnappyCodec.decompress(data)


class _Zstandard(ZStandardCodec):
    @staticmethod
    def decompress(data: bytes) -> bytes:
        from zstandard import ZstdDecompressor

        with ZstdDecompressor().stream_reader(BytesIO(data)) as reader:
            return _block(reader.read(TABLE_METADATA_BYTES_MAX + 1))


def _length(data: bytes) -> int:
    """The number of bytes at which a block of Snappy begins."""
    number = 0
    for index, byte in enumerate(data[:5]):
        number |= (byte & 0x7F) << 7 * index
        if byte < 0x80:
            break
    return number
