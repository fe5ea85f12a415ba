"""`millstream audit`: who did what to a pipeline, and when."""

from __future__ import annotations

import argparse
import json
from typing import Any

from millstream import codes
from millstream.audit import FILE_VARIABLE, TO_LOG, own_file, read_entries
from millstream.errors import UserError
from millstream.printable import in_line
from millstream_runner.cli.place import directory_of

_KNOWN = ("time", "action", "user", "process", "command", "pipeline", "spec")


def run(arguments: argparse.Namespace) -> int:
    if arguments.elsewhere and (arguments.data_dir or arguments.pipeline or arguments.of):
        raise UserError(
            codes.OPTIONS_CONFLICT,
            "a pipeline's file, --data-dir and --pipeline name a run on this machine; leave them out with --elsewhere",
        )
    if arguments.elsewhere and own_file() == TO_LOG:
        raise UserError(
            codes.OPTIONS_CONFLICT, f"{FILE_VARIABLE} sends these entries to standard error: look where that is kept"
        )
    for entry in read_entries(own_file() if arguments.elsewhere else directory_of(arguments).audit):
        print(json.dumps(entry) if arguments.json else in_line(_line(entry)))
    return 0


def _line(entry: dict[str, Any]) -> str:
    user = entry.get("user", {})
    who = user.get("name") or user.get("id")
    if user.get("login") not in (None, user.get("id")):
        who = f"{who} (logged in as {user['login']})"
    rest = " ".join(f"{key}={json.dumps(value)}" for key, value in entry.items() if key not in _KNOWN)
    known = f"{entry.get('time', '')}  {entry.get('action', ''):<6} {who}  process {entry.get('process')}"
    return f"{known}  {rest}".rstrip()
