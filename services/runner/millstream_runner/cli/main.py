"""`millstream`: parses the command line, runs a command, and turns an error into a message and an exit code.

Above it: the user. Below it: one module per command, with `run(arguments) -> exit code`. It imports only the module of
the given command.
"""

from __future__ import annotations

import argparse
import errno
import importlib
import os
import sys
import traceback
from collections.abc import Callable, Sequence
from contextlib import suppress

from millstream import codes
from millstream.descriptors import PIPE_CLOSED, OutputDescriptor, cause_text, reopen_closed
from millstream.die_with_parent import forbid_core_files
from millstream.errors import InfrastructureError, MillstreamError, first_cause
from millstream.missing_packages import missing_package
from millstream.printable import printable_output
from millstream_runner.cli.arguments import parser
from millstream_runner.cli.explain import explained_by
from millstream_runner.cli.parsing import UsageError
from millstream_runner.colours import show, show_message

INTERRUPTED = 130
"""Exit code after Ctrl-C, as shells report it."""
_CANNOT_WRITE = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO, errno.EROFS})
"""Errors of writing to an open file, which do not name it."""


def main(arguments: Sequence[str] | None = None, *, on_ready: Callable[[], object] = lambda: None) -> int:
    """Run one command. Returns its exit code. `on_ready` is called when Ctrl-C no longer prints a traceback."""
    reopen_closed()
    forbid_core_files()
    with printable_output() as printed:
        words = list(sys.argv[1:] if arguments is None else arguments)
        code = _run_words(words, printed, on_ready)
        with suppress(OSError):
            # `printed` remembers the error.
            sys.stdout.flush()
        if printed.error is not None:
            code = code or _report_unprinted(words, printed.error)
        printed.may_be_lost = True
        sys.stderr.flush()
        return code


def _run_words(words: list[str], printed: OutputDescriptor, on_ready: Callable[[], object]) -> int:
    try:
        if "_ARGCOMPLETE" in os.environ:
            from millstream_runner.cli import completion

            completion.answer(parser())
        options = parser().parse_args(words)
    except UsageError as error:
        return _report_usage(error)
    except SystemExit as ended:
        # After `--help` and `--version`, and after an answer to a shell.
        return ended.code if isinstance(ended.code, int) else 0
    except OSError:
        if printed.error is None:
            raise
        return 0
    return _run(options, printed, on_ready)


def _run(options: argparse.Namespace, printed: OutputDescriptor, on_ready: Callable[[], object]) -> int:
    try:
        on_ready()
        command = importlib.import_module(f"millstream_runner.cli.{options.command}")
        code: int = command.run(options)
    except KeyboardInterrupt:
        return INTERRUPTED
    except Exception as error:  # noqa: BLE001  # the one place where a defect becomes a message
        if printed.error is not None:
            # Whatever this is, it began there.
            return 0
        return _report_exception(options, error)
    return code


def _report_exception(options: argparse.Namespace, error: Exception) -> int:
    if (cause := first_cause(error)) is not None:
        return _report(options, error, cause)
    if isinstance(error, ModuleNotFoundError):
        missing = missing_package(error, f"`millstream {options.command}`", windows=True)
        return _report(options, error, missing or _defect(error))
    if isinstance(error, OSError) and (error.filename is not None or error.errno in _CANNOT_WRITE):
        # A file that the command was given, or one in a data directory, is not readable; or a file cannot be written.
        if error.filename is not None:
            meant = InfrastructureError(codes.CANNOT_READ, f"cannot use {error.filename}: {error.strerror}")
        else:
            meant = InfrastructureError(codes.CANNOT_WRITE, f"cannot write a file: {error.strerror}")
        return _report(options, error, meant)
    return _report(options, error, _defect(error))


def _report_unprinted(words: Sequence[str], error: OSError) -> int:
    """Standard output did not take everything. A reader that has ended has seen what it wanted (`millstream logs |
    head`)."""
    if isinstance(error, BrokenPipeError):
        return PIPE_CLOSED
    command = next((word for word in words if not word.startswith("-")), "")
    meant = InfrastructureError(codes.OUTPUT_CLOSED, f"cannot write to standard output: {cause_text(error)}")
    return _show_error(" ".join(filter(None, ("millstream", command))), meant)


def _report_usage(error: UsageError) -> int:
    if error.help:
        show(error.help, file=sys.stderr)
    show_message(f"{error.prog}: {error.shown}", sys.stderr)
    show(f"see `{error.prog} --help` for options and examples", file=sys.stderr)
    return error.exit_code


def _defect(error: Exception) -> MillstreamError:
    return MillstreamError(
        codes.DEFECT, f"defect in Millstream: {error!r}; run again with --debug and report the output"
    )


def _report(options: argparse.Namespace, error: Exception, meant: MillstreamError) -> int:
    """Print one of our errors, and return its exit code; `error` is what was raised."""
    if options.debug:
        traceback.print_exception(error)
    return _show_error(f"millstream {options.command}", meant)


def _show_error(who: str, error: MillstreamError) -> int:
    """Print one of our errors, and return its exit code."""
    show_message(f"{who}: {error.shown}", sys.stderr)
    show(explained_by(error.code), file=sys.stderr)
    return error.exit_code
