"""What Spark on this machine forks its Python workers from: `python -m millstream_reduce.spark.worker_daemon`.

PySpark's own daemon forks workers that know nothing, and each imports half a second's worth of modules in its first
task. Here they are imported once, before the fork, and their memory is shared. Nothing may be imported that starts
threads (gRPC): a thread does not survive a fork.
"""

from __future__ import annotations

import gc

import pandas as pd  # type: ignore[import-untyped]  # noqa: F401  # pyarrow imports it in the first task
import pyspark.worker  # noqa: F401  # what every task runs
from pyspark.daemon import manager

from millstream_reduce.spark import rows  # noqa: F401  # reads the log, in every job: numpy and pyarrow come with it

if __name__ == "__main__":
    # A worker collects garbage after every task. It need not look at what has been imported: that would take 40 ms.
    gc.collect()
    gc.freeze()
    manager()
