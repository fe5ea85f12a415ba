"""Columns that all rows of a window have the same. Pure.

Above it: `rows` and `partials`. Below it: the manifest's spans.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from millstream_reduce.spark.manifest import Span

TIMESTAMP = pa.timestamp("us", tz="UTC")
_OF_SPAN: Mapping[str, Callable[[Span], int]] = {
    "window_start": lambda span: span.start_us,
    "window_end": lambda span: span.end_us,
    "window_early": lambda span: span.early,
}
SPAN_COLUMNS = tuple(_OF_SPAN)


def span_column(name: str, windows: npt.NDArray[np.int32], spans: Sequence[Span]) -> Any:
    """One of `SPAN_COLUMNS`, for rows of these windows."""
    present, inverse = np.unique(windows, return_inverse=True)
    values = np.array([_OF_SPAN[name](spans[index]) for index in present.tolist()], np.int64)[inverse]
    if name == "window_early":
        return pa.array(values.astype(np.int32))
    return pa.array(values).cast(TIMESTAMP)
