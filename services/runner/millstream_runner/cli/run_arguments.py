"""The options of `millstream run`. Nothing is imported here that takes time."""

from __future__ import annotations

from millstream_runner.cli.parsing import argument, flag, number, path

_DEVELOPMENT = (
    flag(
        "--watch",
        help="restart a function when one of its files changes, while the pipeline continues; a function that "
        "cannot be started makes the pipeline wait until it is fixed",
    ),
    argument(
        "--debug-function",
        action="append",
        default=[],
        metavar="VERTEX",
        help="make the function of this vertex wait for a debugger (debugpy; VS Code, PyCharm), and do not treat it "
        "as hung; only programs of this user and root may attach (Linux); can be repeated",
    ),
    argument(
        "--debug-port",
        type=int,
        default=5678,
        metavar="PORT",
        help="local port for debuggers; further functions and replicas use the following ports (default: 5678)",
    ),
)
"""For the authors of functions."""
_WORKERS = (
    number(
        "--workers",
        help="number of worker processes that share the vertices (default: the number of processors, at least two)",
    ),
    argument(
        "--worker-memory",
        metavar="SIZE",
        help="memory that each worker may take, such as 4Gi; one that takes more is ended and restarted, and the run "
        "ends if that happens again and again (default: three quarters of the memory of this machine or container)",
    ),
    argument(
        "--metrics-port-base",
        type=int,
        metavar="PORT",
        help="serve metrics and health probes of the workers on this port and the following ones (default: no "
        "ports); `millstream status` shows which port belongs to which worker",
    ),
    argument(
        "--metrics-host",
        metavar="ADDRESS",
        default="127.0.0.1",
        help="address that these ports listen on; 0.0.0.0 means all (default: 127.0.0.1)",
    ),
    argument(
        "--log-level",
        choices=("debug", "info", "warning", "error"),
        default="info",
        help="log level of the workers (default: info)",
    ),
)
RUN = (
    path(
        "--data-dir",
        metavar="DIR",
        help="directory for everything that the run stores (default: .millstream/<pipeline>)",
    ),
    flag(
        "--fresh",
        help="delete what earlier runs stored, and start over; refused if file sinks contain files of earlier runs",
    ),
    argument(
        "--forget",
        action="append",
        default=[],
        metavar="VERTEX",
        help="drop a source that is no longer in the pipeline, and its position, or a vertex with `state`, and that; "
        "can be repeated",
    ),
    flag(
        "--move-outputs",
        help="when starting over, move the files of earlier runs from DIR of a file sink to DIR.before-<time>",
    ),
    flag(
        "--dry-run",
        help="run nothing: list what differs from the last run of the data directory, and for each difference whether "
        "a restart is enough, whether it needs a drain, or why it is refused",
    ),
    *_DEVELOPMENT,
    flag("--quiet", help="print no progress and no summary, only warnings and errors"),
    argument(
        "--ledger",
        metavar="LEDGER",
        help="where records are stored between steps: `jetstream`, `redis`, or a technology of a package "
        "(default: `spec.interStepBuffer`)",
    ),
    argument(
        "--durability",
        choices=("fsync", "process"),
        default="fsync",
        help="what a commit survives: a power loss (fsync, the default) or the death of any process (process; faster)",
    ),
    *_WORKERS,
    path(
        "--report",
        metavar="FILE",
        help="write a page about the run when it ends, for whatever reason: rates, account, errors; it opens offline",
    ),
)
"""All but the pipeline file and the format of the output."""
