"""The process from which Spark on this machine forks its Python workers:
`python -m millstream_reduce.spark.worker_daemon`.

PySpark's own daemon forks workers without modules, and each spends half a second on imports in its first task. Here the
modules are imported once, before the fork, and their memory is shared. Nothing may be imported that starts threads
(gRPC): a thread does not survive a fork.

These workers read rows for queries, without pandas; those of `function_daemon` run users' functions.
"""

from __future__ import annotations

import gc

import pyspark.worker  # noqa: F401  # what every task runs
from pyspark.daemon import manager

from millstream_reduce.spark import rows, umask  # noqa: F401  # reads the log, in every job: numpy and pyarrow come with it
from millstream_reduce.without_pandas import forgo_pandas


def serve() -> None:
    """Fork workers until Spark ends this process."""
    umask.restore()
    # A worker collects garbage after every task. It need not scan the imported modules, which would take 40 ms.
    gc.collect()
    gc.freeze()
    manager()


if __name__ == "__main__":
    forgo_pandas()
    serve()
