"""`millstream repair`: reports damage in stored data; with `--accept-loss`, continues without what is lost."""

from __future__ import annotations

import argparse
import asyncio
import json
from typing import Any

from millstream.errors import DamageError, first_cause
from millstream.plan.plan import Plan
from millstream.plurals import counted
from millstream_runner.local import audit
from millstream_runner.local.directory import DataDirectory, KnownLedgers
from millstream_runner.local.repair.finding import bare
from millstream_runner.local.repair.repair import Repair
from millstream_runner.local.stored import load_stored, open_stored_buffer

_PASSES_MAX = 5
"""Attempts at a repair if the stored data changes during it."""


def run(arguments: argparse.Namespace) -> int:
    plan, directory = load_stored(arguments.file, arguments.data_dir)
    audit.note(directory, "repair", accept_loss=arguments.accept_loss)
    repaired = asyncio.run(_repair(plan, directory, accept_loss=arguments.accept_loss, quiet=arguments.json))
    if arguments.json:
        print(json.dumps({"accepted": arguments.accept_loss, "damages": repaired}))
    elif not repaired:
        print(f"no damage found in {directory.root}")
    elif arguments.accept_loss:
        print(f"{counted(len(repaired), 'case')} of damage accepted; the next run continues without what is lost")
    else:
        print(
            f"{counted(len(repaired), 'case')} of damage found; nothing was changed. "
            "--accept-loss continues without what is lost"
        )
    return DamageError.exit_code if repaired and not arguments.accept_loss else 0


async def _repair(plan: Plan, directory: DataDirectory, *, accept_loss: bool, quiet: bool) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = []
    for left in reversed(range(_PASSES_MAX)):
        try:
            await _look(plan, directory, found, accept_loss=accept_loss, quiet=quiet)
            break
        except ExceptionGroup as group:
            cause = first_cause(group)
            # A broker notices a damaged file only when it reads it. It then drops everything after the damage,
            # including what was written a moment ago. After a restart it has what is left, and that is inspected.
            if not isinstance(cause, DamageError) or not accept_loss or not left:
                raise
            if not quiet:
                print(f"  checking again: {bare(cause)}")
    return found


async def _look(
    plan: Plan, directory: DataDirectory, found: list[dict[str, Any]], *, accept_loss: bool, quiet: bool
) -> None:
    async with open_stored_buffer(directory, plan, "repair", tolerate_lost=True) as buffer:
        repair = Repair(plan, buffer, KnownLedgers(directory.ledgers), directory.windows, directory.states)
        async for finding in repair.findings():
            found.append(finding.as_json())
            if not quiet:
                print("\n".join(finding.lines()))
            if accept_loss:
                audit.note(directory, "accept", damage=finding.what)
                done = await finding.accept()
                found[-1]["done"] = done
                if not quiet:
                    print(f"  accepted: {done}")
