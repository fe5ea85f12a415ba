"""Whose a data directory is: looked at before a run changes anything in it, and written down when it may.

Above it: the runner. Below it: the files of the data directory.
"""

from __future__ import annotations

import os

from millstream.errors import EnvironmentFault, UserError
from millstream.local.directory import DataDirectory, Runtime, read_json, write_json
from millstream.local.processes import is_alive
from millstream.local.shape import differences, shape_of
from millstream.spec import resolved
from millstream.spec.loading import Loaded


def refuse_live_runner(directory: DataDirectory, previous: Runtime) -> None:
    """The lock is only as good as its file: somebody may have removed it under a run."""
    runner = previous.runner
    if runner.pid != os.getpid() and is_alive(runner):
        raise EnvironmentFault(
            f"the data directory {directory.root} is in use by process {runner.pid}, whose lock file was removed; "
            f"end that run first (`kill {runner.pid}`), or choose another directory with --data-dir"
        )


def check_shape(directory: DataDirectory, loaded: Loaded, *, fresh: bool) -> None:
    """Refuse when what the directory holds does not fit."""
    before = read_json(directory.shape) if not fresh else None
    found = differences(before, shape_of(loaded.graph)) if before is not None else []
    if found:
        raise UserError(
            f"the data directory {directory.root} holds data of a different pipeline: {'; '.join(found)}. "
            "Run with --fresh to remove that data and start over, or with --data-dir to use another directory"
        )


def claim(directory: DataDirectory, loaded: Loaded) -> None:
    """Make the directory this pipeline's."""
    write_json(directory.shape, shape_of(loaded.graph))
    directory.write_pipeline(resolved.dump(loaded.pipeline, loaded.base_dir))
