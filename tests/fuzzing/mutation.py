"""Changes inputs by chance, as a fuzzer does that sees no coverage. Deterministic: the same seed, the same inputs.

It knows a little of what it changes: lengths, offsets and numbers in little-endian are worth more than single bits.
"""

from __future__ import annotations

import base64
import random
from collections.abc import Iterator, Sequence
from pathlib import Path

from tests.fuzzing.using import BYTES_MAX

HERE = Path(__file__).parent
_NUMBERS = (0, 1, 2, 3, 127, 128, 255, 2**16 - 1, 2**31 - 1, 2**31, 2**32 - 1, 2**63 - 1, 2**63, 2**64 - 1)
_PIECES_MAX = 64


def inputs(seeds: Sequence[bytes], count: int, seed: int) -> Iterator[bytes]:
    """`count` inputs made of seeds."""
    rng = random.Random(seed)
    for _ in range(count):
        data = bytearray(rng.choice(seeds))
        for _ in range(rng.choice((1, 1, 1, 2, 3, 8))):
            _change(data, seeds, rng)
        yield bytes(data[:BYTES_MAX])


def _change(data: bytearray, seeds: Sequence[bytes], rng: random.Random) -> None:
    place = rng.randrange(len(data) + 1)
    match rng.randrange(7):
        case 0 if data:
            data[place % len(data)] ^= 1 << rng.randrange(8)
        case 1:
            size = rng.choice((1, 2, 4, 4, 8))
            number = (rng.choice(_NUMBERS) + rng.randrange(-2, 3)) % (1 << 8 * size)
            data[place : place + size] = number.to_bytes(size, "little")
        case 2:
            del data[place : place + rng.randrange(1, _PIECES_MAX)]
        case 3:
            data[place:place] = rng.randbytes(rng.randrange(1, 9))
        case 4:
            other = rng.choice(seeds)
            start = rng.randrange(len(other) + 1)
            data[place : place + rng.randrange(_PIECES_MAX)] = other[start : start + rng.randrange(_PIECES_MAX)]
        case 5:
            piece = data[place : place + rng.randrange(1, _PIECES_MAX)]
            data[place:place] = piece * rng.randrange(1, 4)
        case _:
            del data[place:]


def corpus(name: str) -> list[bytes]:
    """What the coverage-guided fuzzer kept for a target, and what it has found: a line of base64 each."""
    return [
        base64.b64decode(line)
        for folder in ("corpus", "found")
        if (path := HERE / folder / f"{name}.txt").exists()
        for line in path.read_text(encoding="ascii").splitlines()
    ]
