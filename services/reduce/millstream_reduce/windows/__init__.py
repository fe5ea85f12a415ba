"""The open windows of a reduce lane: which rows of the log belong to which of them, in memory. Pure.

    fixed, sliding         PanedWindows     windows that all keys share, put together from panes of time
    session                SessionWindows   one window per key and burst; they grow and merge
    global, every so long  PeriodWindows    one window per key, which gives a result at every multiple of the period
    global, every N rows   CountWindows     one window per key, which gives a result after every N rows

Above: the lane's queue, by the protocol in `millstream_reduce.windowing`. Below: numpy. It knows no clock, no file, no
spec, and no record: only times, keys and places in the log.
"""

from __future__ import annotations

from millstream_reduce.windowing import Windowing
from millstream_reduce.windows.config import WindowConfig
from millstream_reduce.windows.counts import CountWindows
from millstream_reduce.windows.paned import PanedWindows
from millstream_reduce.windows.periods import PeriodWindows
from millstream_reduce.windows.sessions import SessionWindows

__all__ = ["WindowConfig", "make_windowing"]


def make_windowing(config: WindowConfig) -> Windowing:
    """A windowing without open windows, whose watermark is at the start of time."""
    if config.kind == "session":
        return SessionWindows(config)
    if config.kind == "global":
        return CountWindows(config) if config.every_us is None else PeriodWindows(config)
    return PanedWindows(config)
