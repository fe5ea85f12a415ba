"""`millstream validate --import`: each function is started where it would run, and what is wrong with it told once."""

from __future__ import annotations

import json
import sys
from itertools import pairwise
from pathlib import Path
from typing import Any

from millstream import codes
from tests.mesh.running import called

HEAD = "apiVersion: millstream.io/v1alpha1\nkind: Pipeline\nmetadata: {name: p}\nspec:\n  vertices:\n"
SOURCE = "    - name: in\n      source: {generator: {records: 1}}\n"
FUNCTIONS = """\
from dataclasses import dataclass

import millstream_udf as udf

print("imported")

@dataclass
class Order:
    id: int

def good(order: Order) -> Order:
    return order

async def awaits(value: bytes) -> bytes:
    return value

def both(value: bytes):
    yield value
    return [value]


def three(value, context, more):
    return value

def number(value: bytes) -> float:
    return 1.0

@udf.sink
def store(record):
    pass

@udf.source
class Source:
    def read(self, context, records_max, timeout):
        return udf.Batch(position=b"")

@udf.map(arrow=True)
def columns(batch):
    return batch

@udf.map(batch=True)
def batches(records):
    return records
"""
BROKEN = """\
def reached():
    import no_such_package

reached()

def f(value):
    return value
"""
SCRIPT = "import millstream_udf as udf\n\ndef f(value: bytes) -> bytes:\n    return value\n\nudf.serve(f)\n"


def pipeline(directory: Path, functions: dict[str, str], *, more: str = "") -> Path:
    """Maps with these programs, in a row."""
    maps = "".join(f"    - name: {name}\n      udf: {{{program}}}\n" for name, program in functions.items())
    names = ["in", *functions, "out"]
    edges = "".join(f"    - {{from: {a}, to: {b}}}\n" for a, b in pairwise(names))
    sink = "    - name: out\n      sink: {log: {}}\n"
    (directory / "functions.py").write_text(FUNCTIONS)
    (directory / "broken.py").write_text(BROKEN)
    (directory / "script.py").write_text(SCRIPT)
    path = directory / "pipeline.yaml"
    path.write_text(f"{HEAD}{SOURCE}{maps}{sink}{more}  edges:\n{edges}")
    return path


async def checked(directory: Path) -> tuple[int, dict[str, Any]]:
    ended = await called(directory, "validate", "pipeline.yaml", "--import", "-o", "json")
    assert "Traceback" not in ended.err
    return ended.exit_code, json.loads(ended.out)


async def test_functions_that_can_be_run_are_told_with_their_types(tmp_path: Path) -> None:
    pipeline(
        tmp_path,
        {
            "a": "python: 'functions.py:good'",
            "again": "python: 'functions.py:good'",
            "b": "python: 'functions:awaits', concurrency: 5",
            "c": f"command: [{sys.executable}, script.py], env: [{{name: A, value: b}}], limits: {{files: 64}}",
            "d": "command: [/bin/cat]",
            "e": "builtin: {name: cat}",
            "f": "address: 'localhost:1'",
        },
    )
    exit_code, told = await checked(tmp_path)
    assert exit_code == 0, told
    assert told["functions"] == [
        {"vertex": "a", "role": "udf", "function": "good", "takes": "Order", "gives": "Order"},
        {"vertex": "again", "role": "udf", "function": "good", "takes": "Order", "gives": "Order"},
        {"vertex": "b", "role": "udf", "function": "awaits", "takes": "value", "gives": ""},
        {"vertex": "c", "role": "udf", "function": "f", "takes": "value", "gives": ""},
    ]
    notes = {note["path"]: note["what"] for note in told["notes"] if "not imported" in note["what"]}
    assert (
        notes["spec.vertices[5].udf"]
        == "the function is not imported: `/bin/cat` is not a program that uses our SDK for Python or Go"
    )
    assert notes["spec.vertices[7].udf"] == "the function is not imported, because it is not started on this machine"
    assert len(notes) == 2


async def test_everything_that_is_wrong_with_functions_is_told_at_once(tmp_path: Path) -> None:
    (tmp_path / "site").mkdir()
    (tmp_path / "site/sitecustomize.py").write_text("import sys\nsys.modules['pyarrow'] = None\n")
    (tmp_path / "ends.py").write_text("import sys\nprint('bye', file=sys.stderr)\nsys.exit(3)\n\ndef f(value): ...\n")
    pipeline(
        tmp_path,
        {
            "raises": "python: 'broken.py:f'",
            "raises-too": "python: 'broken.py:f'",
            "arity": "python: 'functions.py:three'",
            "annotated": "python: 'functions.py:number'",
            "sink": "python: 'functions.py:store'",
            "source": "python: 'functions.py:Source'",
            "waits": "python: 'functions.py:good', concurrency: 5",
            "arrow": f"python: 'functions.py:columns', env: [{{name: PYTHONPATH, value: {tmp_path / 'site'}}}]",
            "missing": f"command: [{sys.executable}, -m, millstream_udf, 'functions.py:god']",
            "ends": "python: 'ends.py:f'",
            "loses": "python: 'functions.py:both'",
            "together": "python: 'functions.py:batches', streaming: true",
        },
    )
    exit_code, told = await checked(tmp_path)
    assert exit_code == 2
    found = {problem["path"].partition("]")[0].partition("[")[2]: problem for problem in told["problems"]}
    assert len(found) == len(told["problems"]) == 11, told["problems"]
    says = {number: (problem["code"], problem["what"]) for number, problem in found.items()}
    imports, unusable = codes.FUNCTION_IMPORT_RAISES.id, codes.FUNCTION_UNUSABLE.id
    assert says["1"] == (
        imports,
        "`broken.py:f` cannot be imported (also of raises-too): ModuleNotFoundError: No module named 'no_such_package'",
    )
    assert says["3"][0] == unusable
    assert "`three` is a reduce (it has more than two arguments, or one called keys" in says["3"][1]
    assert "number is annotated to return float, which is not an output" in says["4"][1]
    assert says["5"] == (unusable, "`store` is a sink, and the vertex needs a map")
    assert says["6"][0] == unusable
    assert "Source.read must be async: async def read(...)" in says["6"][1]
    assert "good is not async and processes one record at a time" in says["7"][1]
    assert "columns has arrow=True, but pyarrow is not installed where it runs: pip install" in says["8"][1]
    assert says["9"] == (codes.FUNCTION_NOT_FOUND.id, says["9"][1])
    assert "functions.py has no god; it has" in says["9"][1]
    assert says["10"] == (imports, "`ends.py:f` ended with exit code 3 without describing its function")
    assert found["10"]["detail"] == "bye"
    assert says["11"][0] == unusable
    assert "both yields outputs and also returns a value, which would be lost" in says["11"][1]
    assert says["12"] == (unusable, "`batches` cannot send outputs while it makes them")
    # The user's own frames, and none of ours or of the import system.
    assert [line.strip() for line in found["1"]["detail"].splitlines()] == [
        "Traceback (most recent call last):",
        f'File "{tmp_path / "broken.py"}", line 4, in <module>',
        "reached()",
        f'File "{tmp_path / "broken.py"}", line 2, in reached',
        "import no_such_package",
        "ModuleNotFoundError: No module named 'no_such_package'",
    ]
    assert "`" + sys.executable + "`" in found["1"]["expected"]


async def test_a_function_in_a_sandbox_is_imported_in_it(tmp_path: Path) -> None:
    code = tmp_path / "code"
    code.mkdir()
    (tmp_path / "secret").write_text("s")
    (code / "f.py").write_text(f"open({str(tmp_path / 'secret')!r})\n\ndef f(value): ...\n")
    pipeline(tmp_path, {"held": "python: 'f.py:f', workingDir: code, sandbox: strict"})
    ended = await called(tmp_path, "validate", "pipeline.yaml", "--import")
    assert ended.exit_code == 2
    lines = ended.err.splitlines()
    assert "pipeline.yaml:9:7: spec.vertices[1].udf: " in lines[0]
    assert "`f.py:f` cannot be imported: FileNotFoundError" in lines[0]
    assert lines[1] == "    Traceback (most recent call last):"
    assert lines[2] == f'      File "{code / "f.py"}", line 1, in <module>'
    assert lines[-1] == "1 problem"


async def test_a_sink_that_has_to_keep_positions_and_does_not_is_found(tmp_path: Path) -> None:
    (tmp_path / "sinks.py").write_text(
        "class Kept:\n"
        "    def open(self, lane): ...\n"
        "    def write(self, value): ...\n"
        "    def flush(self, position): ...\n\n"
        "def plain(value): ...\n"
    )
    sinks = "".join(
        f"    - name: {name.lower()}\n      sink: {{udsink: {{python: 'sinks.py:{name}'}}, guarantee: exactlyOnce}}\n"
        for name in ("Kept", "plain")
    )
    edges = "  edges: [{from: in, to: kept}, {from: in, to: plain}]\n"
    (tmp_path / "pipeline.yaml").write_text(HEAD + SOURCE + sinks + edges)
    exit_code, told = await checked(tmp_path)
    assert exit_code == 2
    (problem,) = told["problems"]
    assert (problem["code"], problem["path"]) == ("MS-2225", "spec.vertices[2].sink.guarantee")
    assert "`plain` does not keep positions" in problem["what"]
