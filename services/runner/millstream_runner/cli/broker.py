"""`millstream broker`: creates the users of a broker that pipelines share, and the ledgers that their vertices need."""

from __future__ import annotations

import argparse
import asyncio
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from millstream import codes
from millstream.buffers.jetstream.server_config import SYSTEM_ACCOUNT
from millstream.buffers.jetstream.users import VIEWER, BrokerUser, accounts_text, users_of
from millstream.buffers.registry import technology_of
from millstream.buffers.servers import new_password
from millstream.buffers.technology import Access
from millstream.errors import UserError
from millstream.ledger.protocol import DurabilityLevel
from millstream.plan.plan import Plan
from millstream.spec.loading import load
from millstream_runner.cli.answer import answer
from millstream_runner.local import audit
from millstream_runner.local.directory import make_private, write_text
from millstream_vertex.settings import ledger_limits


def run(arguments: argparse.Namespace) -> int:
    if arguments.action == "config":
        _config(arguments, [load(file).plan for file in arguments.files], arguments.to)
        return 0
    loaded = load(arguments.file)
    plan = loaded.plan
    access = technology_of(plan.pipeline).load_access(arguments.broker_access, arguments.broker)
    audit.note_elsewhere(loaded, "prepare", broker=access.place, access=access.identity)
    asyncio.run(prepare(plan, access, DurabilityLevel(arguments.durability)))
    facts = {"pipeline": plan.pipeline.name, "ledgers": list(plan.order)}
    answer(arguments, facts, [f"pipeline {plan.pipeline.name}: {len(plan.order)} ledgers and watermark stores exist"])
    return 0


def _config(arguments: argparse.Namespace, plans: Sequence[Plan], directory: Path) -> None:
    pipelines = {plan.pipeline.name: users_of(plan) for plan in plans}
    if len(pipelines) < len(plans):
        raise UserError(
            codes.BROKER_NAME,
            "two of the files have a pipeline of the same name, but each pipeline has its own account",
        )
    if SYSTEM_ACCOUNT in pipelines:
        raise UserError(
            codes.BROKER_NAME, f"a pipeline cannot be called {SYSTEM_ACCOUNT}: that is the system account of the server"
        )
    make_private(directory)
    variables: dict[str, str] = {}
    lines = ["# The passwords of the users in accounts.conf. Only the server may read them."]
    for pipeline, users in pipelines.items():
        place = directory / pipeline
        make_private(place)
        for user in users:
            variables[user.name] = f"PASSWORD_{len(variables) + 1}"
            password = _password(place / f"{user.file_name}.password")
            lines += [f"# {user.name}", f"{variables[user.name]}: {json.dumps(password)}"]
            write_text(place / f"{user.file_name}.yaml", _access_text(user, arguments.ca))
    write_text(directory / "passwords.conf", "\n".join([*lines, ""]))
    write_text(directory / "accounts.conf", f'include "passwords.conf"\n{accounts_text(pipelines, variables)}')
    named: list[dict[str, Any]] = [
        {
            "pipeline": pipeline,
            "prepare": f"{directory}/{pipeline}/_pipeline.yaml",
            "view": f"{directory}/{pipeline}/{VIEWER}.yaml",
            "vertices": {user.file_name: f"{directory}/{pipeline}/{user.file_name}.yaml" for user in users[2:]},
        }
        for pipeline, users in pipelines.items()
    ]
    said = [
        f'{directory}/accounts.conf, for the server\'s configuration: `include "accounts.conf"` (with passwords.conf)'
    ]
    for one in named:
        said += [
            f"{one['prepare']}: the user that prepares pipeline {one['pipeline']}",
            f"{one['view']}: the user that inspects pipeline {one['pipeline']} and changes nothing",
            *(f"{file}: vertex {vertex}" for vertex, file in one["vertices"].items()),
        ]
    answer(arguments, {"accounts": f"{directory}/accounts.conf", "pipelines": named}, said)


def _password(path: Path) -> str:
    """An existing one is kept, so that a pipeline can be added while others run."""
    try:
        known = path.read_text(encoding="utf-8").strip()
    except FileNotFoundError:
        known = ""
    if not known:
        known = new_password()
        write_text(path, f"{known}\n")
    return known


def _access_text(user: BrokerUser, ca: Path | None) -> str:
    lines = [
        f"user: {user.name}",
        f"password: {{file: {user.file_name}.password}}",
        f"inbox: {user.inbox}",
    ]
    if ca is not None:
        lines.append(f"tls: {{ca: {json.dumps(str(ca.absolute()))}}}")
    return "\n".join([*lines, ""])


async def prepare(plan: Plan, access: Access, level: DurabilityLevel) -> None:
    """Create the ledgers and OT stores of a pipeline, or check that the existing ones are correct."""
    async with technology_of(plan.pipeline).open(access, plan.pipeline.name, name="prepare", require=level) as buffer:
        for vertex in plan.order:
            await buffer.broker.ledger(vertex, ledger_limits(plan, vertex))
            await buffer.stores.store(vertex)
