"""`millstream peek`: shows records of a buffer without consuming them.

It asks the broker of a running pipeline; for one that is not running it starts a broker on its store for the moment.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
from contextlib import AbstractAsyncContextManager
from itertools import islice

from millstream import codes
from millstream.errors import DamageError, UserError
from millstream.ledger.frames import decoded
from millstream.plan import resolved
from millstream.record import BufferId
from millstream_runner.cli.elsewhere import access_elsewhere, open_elsewhere, pipeline_elsewhere
from millstream_runner.cli.place import directory_of
from millstream_runner.cli.records import check_buffer, record_line
from millstream_runner.local import audit
from millstream_runner.local.stored import open_run
from millstream_runner.local.view import PipelineView, stored_frames


def run(arguments: argparse.Namespace) -> int:
    if arguments.count < 1:
        raise UserError(codes.OPTION_VALUE, f"--count {arguments.count}: must be at least 1")
    of_buffer = {"edge": arguments.edge, "partition": arguments.partition, "count": arguments.count}
    elsewhere = pipeline_elsewhere(arguments)
    if elsewhere is not None:
        plan, access = elsewhere.plan, access_elsewhere(arguments, elsewhere.plan)
        check_buffer(plan.graph, arguments.edge, arguments.partition)
        audit.note_elsewhere(elsewhere, "peek", **of_buffer, broker=access.place, access=access.identity)
        opening = open_elsewhere(plan, access)
    else:
        directory = directory_of(arguments)
        plan = resolved.load(directory.read_pipeline()).plan
        check_buffer(plan.graph, arguments.edge, arguments.partition)
        audit.note(directory, "peek", **of_buffer)
        opening = open_run(directory, plan)
    return asyncio.run(_peek(opening, BufferId(arguments.edge, arguments.partition), arguments))


async def _peek(
    opening: AbstractAsyncContextManager[PipelineView], buffer: BufferId, arguments: argparse.Namespace
) -> int:
    async with opening as view:
        ledger = await view.ledger_of(buffer)
        left, damaged = arguments.count, False
        after = await view.consumed(buffer) if arguments.start is None else arguments.start - 1
        async for stored in stored_frames(ledger, buffer, after):
            try:
                frame = decoded(ledger.vertex, buffer, stored)
            except DamageError as error:
                print(error, file=sys.stderr)
                damaged = True
                continue
            for index, record in enumerate(islice(frame.to_records(), left)):
                print(record_line(stored.sequence, index, record, as_json=arguments.json))
            left -= min(left, frame.records)
            if not left:
                break
    if damaged:
        return DamageError.exit_code
    if left == arguments.count and not arguments.json:
        print(f"buffer {buffer} has no records{'' if arguments.start is None else f' from frame {arguments.start} on'}")
    return 0
