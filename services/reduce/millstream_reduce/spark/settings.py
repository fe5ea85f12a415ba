"""Which Spark a pipeline uses, as plain values. Written by whoever starts the driver process, read by that process.

It knows no pipeline file and imports nothing of Spark's.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path

from millstream.errors import UserError
from millstream.limits import MIB

DRIVER_MEMORY_BYTES = 1024 * MIB
LOCAL_TASKS_MAX = 8
"""Tasks at a time of a Spark on this machine, unless the master says otherwise: each has a Python process."""
_TASK_ATTEMPTS = 4
_LOCAL = re.compile(r"local(?:\[(?P<tasks>\d+|\*)(?:, *(?P<attempts>\d+))?\])?")


@dataclass(frozen=True, slots=True)
class SparkSettings:
    """Which Spark, and what it may use."""

    directory: Path
    """For temporary files, the driver's alone. What lies there when it starts is removed."""
    master: str | None = None
    """As Spark writes it; None: on this machine, unless there is a `remote`."""
    remote: str | None = None
    """Address of a Spark Connect server, "sc://host:port"; None: Spark is started here."""
    token: str = ""
    """What the Spark Connect server asks for."""
    encryption: bool = False
    """Of what Spark's processes send each other, and of what they write beside the heap."""
    driver_memory_bytes: int = DRIVER_MEMORY_BYTES
    """Heap of the JVM that is started here."""
    conf: Mapping[str, str] = field(default_factory=dict)
    """Spark's own settings. They come before ours."""
    name: str = "millstream"
    """How a cluster shows this driver."""
    functions: bool = True
    """Functions of the user's run in its Python workers; otherwise those read rows for queries and no more."""

    @property
    def local_tasks(self) -> int | None:
        """How many tasks run at a time on this machine; None: they run elsewhere."""
        match = _LOCAL.fullmatch(self._named_master)
        if self.remote is not None or match is None:
            return None
        tasks = match["tasks"] or "1"
        return _processors() if tasks == "*" else int(tasks)

    @property
    def effective_master(self) -> str:
        """The master, with attempts: a task of `local[N]` alone is tried once, whatever killed it."""
        match = _LOCAL.fullmatch(self._named_master)
        if match is None:
            return self._named_master
        return f"local[{match['tasks'] or 1},{match['attempts'] or _TASK_ATTEMPTS}]"

    @property
    def place(self) -> str:
        """Where jobs run, in a word for people."""
        return self.remote or self.effective_master

    @property
    def _named_master(self) -> str:
        return self.master or f"local[{max(2, min(_processors(), LOCAL_TASKS_MAX))}]"

    def to_json(self) -> str:
        return json.dumps(asdict(self) | {"directory": str(self.directory)}, indent=1) + "\n"

    @classmethod
    def from_json(cls, text: str) -> SparkSettings:
        try:
            data = json.loads(text)
            return cls(**data | {"directory": Path(data["directory"])})
        except (ValueError, TypeError, KeyError) as error:
            raise UserError(f"these are no settings of a Spark driver: {error!r}") from error


def _processors() -> int:
    """That this process may use, which may be fewer than the machine has."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
