"""How stored frames are compressed: the names, for `spec.interStepBuffer` and for what stores frames.

Above it: the spec, and `millstream.ledger.compression`, which compresses. Below it: nothing.
"""

from enum import StrEnum


class Compression(StrEnum):
    """How stored frames are compressed. Numaflow has the same names, in capitals."""

    NONE = "none"
    LZ4 = "lz4"
    ZSTD = "zstd"
    GZIP = "gzip"
