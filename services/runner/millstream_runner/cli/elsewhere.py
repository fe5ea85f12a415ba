"""The pipeline a command means that does not run on this machine: its file, and the broker it runs over."""

from __future__ import annotations

import argparse
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from millstream.buffers.jetstream.access import BrokerAccess
from millstream.buffers.jetstream.access_file import load_access
from millstream.errors import UserError
from millstream.spec.graph import Graph
from millstream.spec.loading import Loaded, load
from millstream_runner.local.view import PipelineView, open_view


def pipeline_elsewhere(arguments: argparse.Namespace) -> Loaded | None:
    """The pipeline that `--nats` and `--file` name; None when a local run is meant."""
    if arguments.nats is None and arguments.nats_access is not None:
        raise UserError("--nats-access says who connects to the broker at --nats: give that as well")
    if arguments.nats is None and arguments.file is None:
        return None
    file = arguments.file or arguments.of
    if arguments.nats is None or file is None:
        raise UserError("--nats and --file belong together: the broker's address, and the pipeline that runs over it")
    if arguments.data_dir is not None or arguments.pipeline is not None:
        raise UserError("--data-dir and --pipeline name a run on this machine; leave them out with --nats")
    return load(file)


def access_elsewhere(arguments: argparse.Namespace) -> BrokerAccess:
    """How to reach the broker of `--nats`, with `--nats-access`."""
    return load_access(arguments.nats_access, arguments.nats)


@asynccontextmanager
async def open_elsewhere(graph: Graph, access: BrokerAccess) -> AsyncIterator[PipelineView]:
    """Look at the pipeline. Raises `UserError` when the broker has nothing of it."""
    async with open_view(graph, access) as view:
        if await view.durability() is None:
            raise UserError(
                f"the broker at --nats has nothing of pipeline {graph.pipeline.name}: its vertices have not started, "
                "or run over another broker or account"
            )
        yield view
