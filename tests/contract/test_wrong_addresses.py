"""Addresses where nothing listens: what `validate --online` says about each kind of source and sink."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import pytest

from millstream import codes
from millstream.ports import free_ports
from millstream.spec.connectors import SINKS, SOURCES
from millstream_runner.cli.main import main
from tests.support.addresses import LOCAL, sinks, sources


def test_each_kind_that_reaches_a_server_is_here() -> None:
    assert {*SOURCES.names} - LOCAL - sources(1).keys() == {"http"}, "others connect to it"
    assert {*SINKS.names} - LOCAL - sinks(1).keys() == set()


async def test_an_address_where_nothing_listens_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    port = free_ports(1)
    ends = [("source", kind, settings) for kind, settings in sources(port).items()]
    ends += [("sink", kind, settings) for kind, settings in sinks(port).items()]
    named = [(f"{end}-{kind.lower()}", end, kind, settings) for end, kind, settings in ends]
    vertices = [{"name": name, end: {kind: settings}} for name, end, kind, settings in named]
    vertices += [{"name": "made", "source": {"generator": {}}}, {"name": "end", "sink": {"blackhole": {}}}]
    edges = [{"from": "made", "to": name} if end == "sink" else {"from": name, "to": "end"} for name, end, *_ in named]
    head = {"apiVersion": "millstream.io/v1alpha1", "kind": "Pipeline", "metadata": {"name": "p"}}
    (tmp_path / "p.yaml").write_text(json.dumps({**head, "spec": {"vertices": vertices, "edges": edges}}))
    # The command has a loop of its own.
    await asyncio.to_thread(main, ["validate", "--online", "-o", "json", str(tmp_path / "p.yaml")])
    problems = json.loads(capsys.readouterr().out)["problems"]
    wrong = []
    for index, (name, end, kind, _) in enumerate(named):
        found = [one for one in problems if one["path"].startswith(f"spec.vertices[{index}].{end}.{kind}")]
        if [one["code"] for one in found] != [str(codes.TARGET_AWAY)] or str(port) not in found[0]["what"]:
            wrong.append((name, [(one["code"], one["what"]) for one in found]))
    assert not wrong
