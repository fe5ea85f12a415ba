"""Keeps Python's search for garbage short in a process that has millions of objects for long.

    full collection ─► what it leaves is not looked at again ─► (an hour later) looked at once more

Above it: the worker. Below it: nothing. A full collection looks at every object, which takes 100 ms for a million of
them, and meanwhile the process does nothing else. What has outlived one is most probably kept: modules, connections,
what functions remember. Garbage in cycles that has outlived one is found by the first collection of the next hour.
"""

from __future__ import annotations

import gc
import time
from typing import Any

LOOKED_AT_AGAIN_S = 3600.0
"""After so long, a full collection looks at everything once more."""


class _Freezing:
    def __init__(self) -> None:
        self._looked_at_all_s = time.monotonic()

    def __call__(self, phase: str, info: dict[str, Any]) -> None:
        """See `gc.callbacks`."""
        if info["generation"] < 2:
            return
        if phase == "stop":
            gc.freeze()
        elif time.monotonic() - self._looked_at_all_s > LOOKED_AT_AGAIN_S:
            gc.unfreeze()
            self._looked_at_all_s = time.monotonic()


def freeze_what_stays() -> None:
    """Do not look again at what outlives a full collection from now on, except once an hour. For a process of our own,
    once: it lasts to its end."""
    gc.callbacks.append(_Freezing())
