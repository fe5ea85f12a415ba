"""`millstream repair`: says what is damaged in what a pipeline has stored; `--accept-loss` goes on without it."""

from __future__ import annotations

import argparse
import asyncio

from millstream.errors import DamageError, UserError
from millstream.ledger.jetstream import open_jetstream_broker
from millstream.ledger.protocol import DurabilityLevel
from millstream.local import audit
from millstream.local.directory import HOME, DataDirectory, read_json
from millstream.local.ledgers import KnownLedgers
from millstream.local.repair import Repair
from millstream.local.shape import changes, shape_of
from millstream.local.stored import open_stored
from millstream.spec.graph import Graph
from millstream.spec.loading import load
from millstream.watermark.jetstream import open_jetstream_ot_stores
from millstream.wire.nats import open_connection


def run(arguments: argparse.Namespace) -> int:
    loaded = load(arguments.file)
    directory = DataDirectory(arguments.data_dir or HOME / loaded.pipeline.name)
    before = read_json(directory.shape)
    if before is None:
        raise UserError(f"{directory.root} is not the data directory of a pipeline (it has no shape.json)")
    found = changes(before, shape_of(loaded.graph))
    if found.any:
        raise UserError(
            f"the data directory {directory.root} holds data of a different pipeline: {'; '.join(found.texts)}"
        )
    audit.note(directory, "repair", accept_loss=arguments.accept_loss)
    return asyncio.run(_repair(loaded.graph, directory, accept_loss=arguments.accept_loss))


async def _repair(graph: Graph, directory: DataDirectory, *, accept_loss: bool) -> int:
    found = left = 0
    name = graph.pipeline.name
    async with (
        open_stored(directory) as stored,
        open_connection(stored.access, name=f"{name} repair") as connection,
        open_jetstream_broker(stored.access, name, require=DurabilityLevel.MEMORY) as broker,
        open_jetstream_ot_stores(connection, name) as stores,
    ):
        repair = Repair(graph, connection, broker, stores, KnownLedgers(directory.ledgers), directory.windows)
        async for finding in repair.findings():
            found += 1
            print(f"DAMAGED: {finding.what}\n  affects: {finding.affects}")
            if not accept_loss:
                continue
            if finding.accept is None:
                left += 1
                print("  not repaired: restore it, or start the pipeline over with --fresh")
            else:
                audit.note(directory, "accept", damage=finding.what)
                print(f"  accepted: {await finding.accept()}")
    if not found:
        print(f"no damage found in {directory.root}")
        return 0
    if accept_loss:
        print(f"{found - left} of {found} damages accepted; the next run goes on without what is lost")
        return DamageError.exit_code if left else 0
    print(f"{found} damages found; nothing was changed. --accept-loss goes on without what is lost")
    return DamageError.exit_code
