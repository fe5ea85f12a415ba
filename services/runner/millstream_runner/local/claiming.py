"""Ownership of a data directory: checked before a run changes anything in it, and recorded once the run may do so.

Above it: the runner. Below it: the files of the data directory.
"""

from __future__ import annotations

import os

from millstream import codes
from millstream.errors import InfrastructureError
from millstream.plan import resolved
from millstream.plan.shape import shape_of, successor
from millstream.spec.loading import LoadedPipeline
from millstream_runner.local.directory import DataDirectory, Runtime, read_json, write_json
from millstream_runner.local.processes import is_alive


def refuse_live_runner(directory: DataDirectory, previous: Runtime) -> None:
    """The lock is only as good as its file, which may have been removed during a run."""
    runner = previous.runner
    if runner.pid != os.getpid() and is_alive(runner):
        raise InfrastructureError(
            codes.DATA_DIRECTORY_IN_USE,
            f"the data directory {directory.root} is in use by process {runner.pid}, whose lock file was removed; "
            f"end that run first (`kill {runner.pid}`), or choose another directory with --data-dir",
        )


def claim(directory: DataDirectory, loaded: LoadedPipeline) -> None:
    """Record that the directory belongs to this pipeline."""
    before = read_json(directory.shape)
    now = shape_of(loaded.plan)
    # The shape is written last: everything in it is then in the pipeline, too, so that a change can ask what waits
    # there.
    directory.write_pipeline(resolved.dump(loaded.plan, loaded.base_dir))
    write_json(directory.shape, now if before is None else successor(before, now))
