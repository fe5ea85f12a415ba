"""`millstream`: reads the command line, hands over to a command, turns an error into a message and an exit code.

Above it: the user. Below it: one module per command, with `run(arguments) -> exit code`. It imports none of them before
it knows which one is meant.
"""

from __future__ import annotations

import argparse
import importlib
import os
import sys
import traceback
from collections.abc import Sequence

from millstream.cli.arguments import parser
from millstream.errors import MillstreamError
from millstream.local.causes import first_cause

INTERRUPTED = 130
"""Exit code after Ctrl-C, as a shell gives it."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command. Returns its exit code."""
    options = parser().parse_args(arguments)
    try:
        command = importlib.import_module(f"millstream.cli.{options.module}")
        code: int = command.run(options)
        sys.stdout.flush()
    except KeyboardInterrupt:
        return INTERRUPTED
    except BrokenPipeError:
        # The reader has seen enough (`millstream logs | head`). Nothing may be written at exit either.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except MillstreamError as error:
        return _report(options, error, str(error), error.exit_code)
    except Exception as error:  # noqa: BLE001  # the one place where a defect becomes a message
        cause = first_cause(error) if isinstance(error, ExceptionGroup) else None
        if cause is not None:
            return _report(options, error, str(cause), cause.exit_code)
        text = f"defect in Millstream: {error!r}; run again with --debug and report what it prints"
        return _report(options, error, text, MillstreamError.exit_code)
    return code


def _report(options: argparse.Namespace, error: Exception, text: str, exit_code: int) -> int:
    if options.debug:
        traceback.print_exception(error)
    print(f"millstream {options.command}: {text}", file=sys.stderr)
    return exit_code
