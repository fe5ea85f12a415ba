"""Arrow's buffers are on the heap of the process.

Arrow brings an allocator of its own, which keeps what is freed, beside what the heap of the process keeps of the same
kind. With one heap for both, the flights demo takes 120 MiB less, and no more processor time.

Above it: the start of processes of pipelines. Below it: the environment, which Arrow reads when it is imported.
"""

from __future__ import annotations

import os

_VARIABLE = "ARROW_DEFAULT_MEMORY_POOL"


def use_the_heap() -> None:
    """Choose the heap for this process and those that it starts, unless the user has chosen. Must be called before
    Arrow is imported."""
    os.environ.setdefault(_VARIABLE, "system")
