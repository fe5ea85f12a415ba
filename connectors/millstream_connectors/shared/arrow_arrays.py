"""Arrow arrays built from buffers. If pandas is installed, `pa.array` and `pa.scalar` import it, which takes half a
second and more memory than everything else in a process. Pure.

Above it: what reads or writes tables. Below it: pyarrow, an extra.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from itertools import accumulate
from typing import Any

import pyarrow as pa


def texts_array(texts: Sequence[bytes], kind: pa.DataType | None = None) -> pa.Array[Any]:
    """Without nulls, of strings or another kind with offsets of 32 bits."""
    buffers = [None, pa.py_buffer(array("i", accumulate(map(len, texts), initial=0))), pa.py_buffer(b"".join(texts))]
    return pa.Array.from_buffers(kind or pa.string(), len(texts), buffers)


def numbers_array(kind: pa.DataType, numbers: array[Any]) -> pa.Array[Any]:
    """Without nulls; `numbers` has items of that kind."""
    return pa.Array.from_buffers(kind, len(numbers), [None, pa.py_buffer(numbers)])
