"""The pipeline of a command if it runs on another machine: its file, and its broker."""

from __future__ import annotations

import argparse
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from millstream import codes
from millstream.buffers.registry import technology_of
from millstream.buffers.technology import Access
from millstream.errors import UserError
from millstream.plan.plan import Plan
from millstream.spec.loading import LoadedPipeline, load
from millstream_runner.local.view import PipelineView, open_view


def pipeline_elsewhere(arguments: argparse.Namespace) -> LoadedPipeline | None:
    """The pipeline that `--broker` and `--file` name; None for a run on this machine."""
    if arguments.broker is None and arguments.broker_access is not None:
        raise UserError(
            codes.OPTIONS_CONFLICT, "--broker-access contains the credentials for the broker at --broker: give both"
        )
    if arguments.broker is None and arguments.file is None:
        return None
    file = arguments.file or arguments.of
    if arguments.broker is None or file is None:
        raise UserError(
            codes.OPTIONS_CONFLICT,
            "--broker and --file belong together: the address of the broker, and the pipeline that uses it",
        )
    if arguments.data_dir is not None or arguments.pipeline is not None:
        raise UserError(
            codes.OPTIONS_CONFLICT, "--data-dir and --pipeline name a run on this machine; leave them out with --broker"
        )
    return load(file)


def access_elsewhere(arguments: argparse.Namespace, plan: Plan) -> Access:
    """How to connect to the broker of `--broker` with `--broker-access`."""
    return technology_of(plan.pipeline).load_access(arguments.broker_access, arguments.broker)


@asynccontextmanager
async def open_elsewhere(plan: Plan, access: Access) -> AsyncIterator[PipelineView]:
    """Inspect the pipeline. Raises `UserError` if the broker has no data of it."""
    async with open_view(plan, access) as view:
        if await view.durability() is None:
            raise UserError(
                codes.NO_SUCH_RUN,
                f"the broker at --broker has no data of pipeline {plan.pipeline.name}: its vertices have not "
                "started, or use another broker or account",
            )
        yield view
