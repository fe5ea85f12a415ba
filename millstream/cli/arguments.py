"""The command line's grammar: commands, options, help. Nothing is imported here that takes time."""

from __future__ import annotations

import argparse
from pathlib import Path

_EPILOG = """\
exit codes:
  0    done: the pipeline has ended, or was drained after Ctrl-C
  2    something for you to change: the pipeline file, an option
  3    a function of yours failed, or cannot be started
  4    the machine or a server: a port taken, a disk full, no permission
  5    stored data is damaged
  70   a defect in Millstream
  130  stopped at once (second Ctrl-C)
"""


def parser() -> argparse.ArgumentParser:
    """The whole command line."""
    top = argparse.ArgumentParser(
        prog="millstream",
        description="Event-time streaming pipelines whose steps are functions in any language, exactly once.",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    commands = top.add_subparsers(dest="command", required=True, metavar="COMMAND")
    _add_run(commands)
    return top


def _command(
    commands: argparse._SubParsersAction[argparse.ArgumentParser], name: str, summary: str, description: str
) -> argparse.ArgumentParser:
    command = commands.add_parser(
        name, help=summary, description=description, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    command.set_defaults(module=name)
    command.add_argument("--debug", action="store_true", help="print stack traces with errors")
    return command


def _add_run(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    command = _command(
        commands,
        "run",
        "run a pipeline on this machine",
        "Run a pipeline on this machine: a broker of its own, one process per vertex replica, and your functions.\n"
        "It ends by itself when every source has ended, with a summary. Ctrl-C finishes what is in flight and ends;\n"
        "a second Ctrl-C ends at once. Nothing is lost either way: the next run with the same data directory goes on.",
    )
    command.add_argument("file", type=Path, metavar="FILE", help="the pipeline, as YAML")
    command.add_argument(
        "--data-dir", type=Path, metavar="DIR", help="where the run keeps everything (default: .millstream/<pipeline>)"
    )
    command.add_argument("--fresh", action="store_true", help="remove what earlier runs stored, and start over")
    command.add_argument("--quiet", action="store_true", help="no progress and no summary, only warnings and errors")
    command.add_argument(
        "--durability",
        choices=("fsync", "process"),
        default="fsync",
        help="what a commit survives: power loss (fsync, the default) or the death of any process (process; faster)",
    )
    command.add_argument(
        "--metrics-port-base",
        type=int,
        metavar="PORT",
        help="serve Prometheus metrics of the vertex processes on this port and the ones after it (default: not)",
    )
    command.add_argument(
        "--log-level",
        choices=("debug", "info", "warning", "error"),
        default="info",
        help="of the vertex processes, in the logs (default: info)",
    )
