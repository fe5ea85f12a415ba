"""Kinds that are found by name: what is imported, what is said of missing ones, and what is not lost."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Mapping
from importlib.metadata import EntryPoint
from pathlib import Path
from typing import Any, ClassVar

import pytest

from millstream import codes
from millstream.spec.connectors import SINKS, SOURCES, SinkKind
from millstream.spec.needs import not_installed
from millstream.spec.references import Reference, referenced_files
from millstream.spec.registry import Registry
from millstream.spec.sinks import Sink
from millstream.spec.sources import Source
from millstream.spec.values import SpecModel
from millstream_reader.connector import SourceConnector
from millstream_writer.connector import SinkConnector
from tests.support.errors import raises

PROGRAM = """
import sys
from millstream.spec.loading import load_text
load_text('''
apiVersion: millstream.io/v1alpha1
kind: Pipeline
metadata: {name: p}
spec:
  vertices:
  - {name: in, source: {generator: {}}}
  - {name: out, sink: {log: {}}}
  edges: [{from: in, to: out}]
''', 'p.yaml')
print(*sorted(name for name in sys.modules if name.startswith('millstream_')), sep='\\n')
"""


@pytest.mark.process
def test_a_pipeline_imports_the_objects_it_names_and_nothing_of_their_lanes() -> None:
    answer = subprocess.run([sys.executable, "-c", PROGRAM], check=True, capture_output=True, text=True, timeout=60)
    modules = set(answer.stdout.split())
    assert {"millstream_connectors.generator.connector", "millstream_connectors.log.connector"} <= modules
    assert "millstream_worker.kinds.source" in modules
    lanes = ("millstream_vertex", "millstream_reduce", "millstream_udf", "millstream_worker.lanes")
    assert not {name for name in modules if name.endswith(".lane") or ".http" in name or ".file" in name}
    assert not {"millstream_connectors.generator.source", "millstream_connectors.log.sink"} & modules
    assert not {name for name in modules if name.startswith(lanes)}


@pytest.mark.parametrize("name", [*SOURCES.names, *SINKS.names])
def test_each_kind_can_be_opened(name: str) -> None:
    registries: list[tuple[Registry[Any], type]] = [(SOURCES, SourceConnector), (SINKS, SinkConnector)]
    found = [isinstance(registry.load(name), connector) for registry, connector in registries if name in registry]
    assert found
    assert all(found)


def installed(*entries: EntryPoint) -> Registry[SinkKind[SpecModel]]:
    registry: Registry[SinkKind[SpecModel]] = Registry("millstream.sinks", "sink", SinkKind, {})
    registry.__dict__["_installed"] = {entry.name: {} for entry in entries}
    for entry in entries:
        registry.__dict__["_installed"][entry.name][entry.value] = entry
    return registry


@pytest.mark.parametrize(
    ("values", "why"),
    [
        (["no.such.module:SINK"], r"the sink x of Millstream cannot be loaded: ModuleNotFoundError"),
        (["json:dumps"], r"the sink x of Millstream is not usable: json:dumps is not a SinkKind"),
        (["a:A", "b:B"], r"several packages have a sink named x: .*; remove all but one"),
    ],
)
def test_what_cannot_be_loaded_is_named(values: list[str], why: str) -> None:
    registry = installed(*(EntryPoint("x", value, "millstream.sinks") for value in values))
    with raises(codes.EXTENSION, match=why):
        registry.load("x")
    assert list(registry.all()) == []


def test_what_a_connector_lacks_is_told_with_what_to_install() -> None:
    class Needy(SinkKind[SpecModel]):
        packages: ClassVar[Mapping[str, str]] = {"no_such_module": "millstream[kafka]", "json": "nothing"}

    (found,) = not_installed(Needy().needs())
    assert found.what == "needs the package no_such_module, which is not installed"
    assert found.remedy == "`pip install 'millstream[kafka]'`"


def test_settings_are_among_the_members_of_a_choice() -> None:
    """Checks of secrets, and what a sandbox hides, look at all of them."""
    sink = Sink.model_validate(
        {"http": {"url": {"file": "url"}, "headers": {"a": {"file": "h"}}}, "retryStrategy": {"onFailure": "drop"}}
    )
    source = Source.model_validate({"http": {"auth": {"token": {"file": "token"}}}})
    assert list(referenced_files((sink, source), Path("/b"))) == [Path("/b/url"), Path("/b/h"), Path("/b/token")]
    assert dict(source.members())["http"].auth.token == Reference(file="token")


def test_a_choice_is_what_it_was_after_a_copy_and_in_another_process() -> None:
    sink = Sink.model_validate({"file": {"path": "out"}, "retryStrategy": {"onFailure": "drop"}})
    written = sink.as_written(given_only=True)
    assert written == {"file": {"path": "out"}, "retryStrategy": {"onFailure": "drop"}}
    assert Sink.model_validate(written) == sink
    assert sink.model_copy(update={"envelope": True}).settings == sink.settings
    assert Sink.model_validate({"file": {"path": "other"}}) != sink
