"""Runs a pipeline on a case: its sources are replaced by the case's records, its sinks by files of envelopes.

    pipeline file ─► sources and sinks replaced ─► `millstream run` in a temporary directory ─► envelopes of each sink

Above it: the command. Below it: the runner. Everything between sources and sinks runs as usual: functions, windows,
routing, retries, dead letters.
"""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import Iterator, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from millstream import codes
from millstream.dead_letter import Envelope, read_envelope
from millstream.errors import InfrastructureError
from millstream.files import make_private_directories, write_private
from millstream.ledger.protocol import DurabilityLevel
from millstream.spec.checks import local_problems
from millstream.spec.loading import LoadedPipeline, load, load_text
from millstream.spec.models import Vertex
from millstream.spec.problems import Problem, SpecError
from millstream.spec.sinks import Sink
from millstream.spec.sources import Source
from millstream_runner.cases.case import Case, CaseInput
from millstream_runner.cases.inputs import FILE_VARIABLE, CaseInputs, input_line
from millstream_runner.local.run import RunOptions, RunResult, run
from millstream_runner.local.screen import Screen

_TEXT_FORMATS = {"jsonl": "jsonl", "lines": "lines", "csv": "jsonl"}
"""Formats of file sources, and the formats in which the records of a case are written instead."""


class Silent(Screen):
    """A screen that keeps its messages, for the report of a failed case."""

    def __init__(self) -> None:
        super().__init__(sys.stderr)
        self.messages: list[str] = []

    def message(self, text: str) -> None:
        self.messages.append(text)


@dataclass(frozen=True, slots=True)
class Came:
    """The result of a run on a case."""

    outputs: Mapping[str, Sequence[Envelope]]
    """Records by sink vertex, in the order of the sinks' files."""
    failure: str
    """Why it did not run to its end; empty if it did."""


def load_case_pipeline(case: Case, path: Path) -> LoadedPipeline:
    """The pipeline of a case. Raises `SpecError` if it is wrong, or does not fit the case."""
    loaded = load(path)
    problems = [*_unknown(case, loaded), *_not_given(case, loaded)]
    if problems:
        raise SpecError(problems)
    return loaded


def run_case(case: Case, loaded: LoadedPipeline, directory: Path) -> Came:
    """Run it, with all its data in `directory`. Raises `SpecError` if the pipeline cannot run here."""
    replaced = _replaced(case, loaded, directory)
    problems = local_problems(replaced)
    if problems:
        raise SpecError(problems)
    import uvloop

    screen = Silent()
    options = RunOptions(data_dir=directory / "data", durability=DurabilityLevel.PROCESS, workers=1)

    async def run_in_time() -> RunResult:
        async with asyncio.timeout(case.timeout_s):
            return await run(replaced, options, screen)

    try:
        result = uvloop.run(run_in_time())
    except TimeoutError:
        said = "".join(f"\n{line}" for line in screen.messages[-5:])
        return Came({}, f"the pipeline had not ended after {case.timeout_s:g} s (`timeout` of the case){said}")
    if result.failure is not None:
        shown = "\n".join(screen.messages) if result.failure.shown else result.failure.message
        return Came({}, f"{result.failure.process} failed:\n{shown}")
    if result.exit_code != 0:
        return Came({}, "\n".join([f"the pipeline ended with exit code {result.exit_code}", *screen.messages]))
    if result.summary is not None and not result.summary.ended:
        # Ctrl-C has drained it.
        raise KeyboardInterrupt
    return Came({vertex.name: list(_kept(directory, vertex.name)) for vertex in _vertices(loaded, Sink)}, "")


def _vertices(loaded: LoadedPipeline, kind: type[Source | Sink]) -> list[Vertex]:
    return [vertex for vertex in loaded.graph.vertices if isinstance(vertex.settings, kind)]


def _unknown(case: Case, loaded: LoadedPipeline) -> Iterator[Problem]:
    for member, given, vertices in (
        ("inputs", case.inputs, _vertices(loaded, Source)),
        ("outputs", case.outputs, _vertices(loaded, Sink)),
    ):
        names = [vertex.name for vertex in vertices]
        for name in given:
            if name not in names:
                what = f"pipeline {loaded.path} has no {'source' if member == 'inputs' else 'sink'} `{name}`"
                yield case.problem((member, name), what, f"one of {', '.join(names)}")


def _not_given(case: Case, loaded: LoadedPipeline) -> Iterator[Problem]:
    """Times and keys that the source takes from the value would override those of the case."""
    for vertex in _vertices(loaded, Source):
        source = vertex.settings
        assert isinstance(source, Source)
        for index, record in enumerate(case.inputs.get(vertex.name, ())):
            for name, given, is_taken in (
                ("time", record.time_us, source.event_time is not None and source.event_time.field is not None),
                ("keys", record.keys, bool(source.keys)),
            ):
                if given is not None and is_taken:
                    yield case.problem(
                        ("inputs", vertex.name, index, name),
                        f"source `{vertex.name}` reads it from the value",
                        f"no `{name}`, but a field of that name in the value",
                    )


def _replaced(case: Case, loaded: LoadedPipeline, directory: Path) -> LoadedPipeline:
    """The pipeline with its sources and sinks replaced."""
    document = deepcopy(loaded.document.value)
    for written in document["spec"]["vertices"]:
        vertex = loaded.graph.vertex(written["name"])
        if isinstance(vertex.settings, Source):
            written["source"] = _source(written["source"], vertex, case.inputs.get(vertex.name, ()), directory)
        elif isinstance(vertex.settings, Sink):
            path = str(_directory_of(directory, vertex.name))
            written["sink"] = {"file": {"path": path, "rolling": {"maxAge": "1s"}}, "envelope": True}
    # Problems and references are those of the pipeline file, and refer to its lines.
    return replace(load_text(json.dumps(document), loaded.path), document=loaded.document)


def _source(
    written: Mapping[str, Any], vertex: Vertex, records: Sequence[CaseInput], directory: Path
) -> dict[str, Any]:
    source = vertex.settings
    assert isinstance(source, Source)
    rest = {name: value for name, value in written.items() if name != source.kind}
    form = _TEXT_FORMATS.get(getattr(source.settings, "format", "")) if source.kind == "file" else None
    # Text that is not a value is refused as in a file.
    in_lines = all(record.is_value_only and _is_line(record.value) for record in records)
    path = directory / "inputs" / f"{vertex.name}.jsonl"
    try:
        make_private_directories(path.parent)
        if form is not None and in_lines:
            write_private(path, "".join(f"{record.value.decode()}\n" for record in records))
            return {**rest, "file": {"paths": [str(path)], "format": form}}
        write_private(path, "".join(f"{input_line(record)}\n" for record in records))
    except OSError as error:
        raise InfrastructureError(codes.CANNOT_WRITE, f"cannot write {path}: {error.strerror}") from error
    function = f"{CaseInputs.__module__}:{CaseInputs.__name__}"
    return {**rest, "udsource": {"python": function, "env": [{"name": FILE_VARIABLE, "value": str(path)}]}}


def _is_line(value: bytes) -> bool:
    try:
        return len(value.decode().splitlines()) == 1
    except UnicodeDecodeError:
        return False


def _directory_of(directory: Path, sink: str) -> Path:
    return directory / "outputs" / sink


def _kept(directory: Path, sink: str) -> Iterator[Envelope]:
    for file in sorted(_directory_of(directory, sink).glob("*.jsonl")):
        for line in file.read_bytes().splitlines():
            yield read_envelope(line)
