"""Whether this process may open enough files for a run.

Above it: the command that runs pipelines, and `doctor`. Below it: the system.
"""

from __future__ import annotations

import resource

from millstream import codes
from millstream.errors import InfrastructureError

FILES_MIN = 48
"""The fewest with which a small pipeline starts."""
FILES_ADVISED = 1024


def check_open_files() -> None:
    """Raises `InfrastructureError` if so few files may be open that nothing would start."""
    soft, _hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY or soft >= FILES_MIN:
        return
    raise InfrastructureError(
        codes.PROCESS_NOT_STARTED,
        f"a process may open at most {soft} files here, and a run needs at least {FILES_MIN}, or more with more "
        f"vertices: {more_files('it')}",
    )


def more_files(program: str) -> str:
    """What to do so that `program` may open more files."""
    _soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard != resource.RLIM_INFINITY and hard < FILES_ADVISED:
        return f"ask for a hard limit of {FILES_ADVISED} (limits.conf, systemd's LimitNOFILE)"
    return f"`ulimit -n {FILES_ADVISED}` in the shell that starts {program}"
