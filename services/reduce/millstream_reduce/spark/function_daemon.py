"""Like `worker_daemon`, for workers that run users' functions: `python -m millstream_reduce.spark.function_daemon`.

A function may use pandas, and pass its objects to pyarrow, which imports pandas with the first array anyway.
"""

from __future__ import annotations

import pandas as pd  # type: ignore[import-untyped]  # noqa: F401

from millstream_reduce.spark import worker_daemon

if __name__ == "__main__":
    worker_daemon.serve()
