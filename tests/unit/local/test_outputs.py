"""What file sinks of former runs have left: found, and moved aside whole."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from millstream import codes
from millstream.durable import listen
from millstream.record import LaneId, Position
from millstream.spec.graph import Graph
from millstream.spec.loading import load
from millstream_connectors.file.sink.directory import LaneDirectory
from millstream_runner.local.outputs import former_outputs, move_outputs, refuse_former_outputs
from tests.contract.sinks.file_target import sink_owner
from tests.support.errors import raises

NOW_US = 1_700_000_000_000_000
PIPELINE = """\
apiVersion: millstream.io/v1alpha1
kind: Pipeline
metadata: {name: p}
spec:
  vertices:
    - {name: in, source: {generator: {records: 1}}}
    - name: out
      sink:
        udsink: {command: ['true']}
        fallback: {file: {path: refused}}
    - {name: copy, sink: {file: {path: ./copy}}}
  edges:
    - {from: in, to: out}
    - {from: in, to: copy}
"""


@pytest.fixture
def graph(tmp_path: Path) -> Graph:
    (tmp_path / "pipeline.yaml").write_text(PIPELINE)
    return load(tmp_path / "pipeline.yaml").graph


def written(path: Path, vertex: str) -> LaneDirectory:
    directory = LaneDirectory(path, replace(sink_owner(1), lane=LaneId(vertex, "in", 0)))
    directory.open()
    file = directory.begin("jsonl")
    directory.append(file, b"1\n")
    directory.finish(file, Position(0), Position(1), "jsonl")
    return directory


def names(path: Path) -> list[str]:
    return sorted(str(entry.relative_to(path)) for entry in path.rglob("*"))


def test_only_files_of_the_same_vertices_stand_in_the_way(graph: Graph, tmp_path: Path) -> None:
    assert former_outputs(graph, tmp_path) == []
    refuse_former_outputs([], fresh=True)
    written(tmp_path / "copy", "another").close()
    (tmp_path / "copy" / "mine.jsonl").touch()
    assert former_outputs(graph, tmp_path) == []
    written(tmp_path / "refused", "out").close()
    (found,) = former_outputs(graph, tmp_path)
    assert (found.directory, len(found.files), len(found.runs)) == (tmp_path / "refused", 1, 1)
    with raises(
        codes.OUTPUTS_OF_EARLIER_RUN, match=r"refused contains 1 file, such as out\.in\.0-.*Nothing was removed"
    ):
        refuse_former_outputs([found], fresh=True)


def test_they_are_moved_with_what_belongs_to_them_and_nothing_else(graph: Graph, tmp_path: Path) -> None:
    written(tmp_path / "copy", "copy").close()
    before = names(tmp_path / "copy")
    written(tmp_path / "copy", "another").close()
    (tmp_path / "copy" / "mine.jsonl").touch()
    (tmp_path / "copy.before-20231114T221320Z").mkdir()
    moved = move_outputs(former_outputs(graph, tmp_path), NOW_US)
    aside = tmp_path / "copy.before-20231114T221320Z-2"
    assert moved == [(tmp_path / "copy", aside)]
    assert names(aside) == before
    assert [name for name in names(tmp_path / "copy") if "copy." in name] == []
    assert len(names(tmp_path / "copy")) == 6
    assert former_outputs(graph, tmp_path) == []


def test_those_of_a_run_that_goes_on_stay(graph: Graph, tmp_path: Path) -> None:
    directory = written(tmp_path / "copy", "copy")
    before = names(tmp_path)
    with raises(codes.OUTPUT_IN_USE):
        move_outputs(former_outputs(graph, tmp_path), NOW_US)
    assert names(tmp_path) == before
    directory.close()


def test_a_move_that_dies_in_the_middle_is_finished_by_the_next(graph: Graph, tmp_path: Path) -> None:
    written(tmp_path / "copy", "copy").close()
    written(tmp_path / "refused", "out").close()
    for left in (4, 3, 2, 1):
        reached: list[str] = []

        def dies(point: str, vertex: str, left: int = left, reached: list[str] = reached) -> None:
            reached.append(point)
            if len(reached) > left:
                raise KeyboardInterrupt

        listen(dies)
        try:
            with pytest.raises(KeyboardInterrupt):
                move_outputs(former_outputs(graph, tmp_path), NOW_US)
        finally:
            listen(None)
    move_outputs(former_outputs(graph, tmp_path), NOW_US)
    assert former_outputs(graph, tmp_path) == []
    assert len(list(tmp_path.glob("*.before-*/*.jsonl"))) == 2
