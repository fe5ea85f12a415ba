"""Style as a test: what reviewers should not have to look for."""

from __future__ import annotations

import ast
import subprocess
import sys
import tomllib
from pathlib import Path, PurePosixPath

import pytest

from tools import layers, style

CONFIGURATION = tomllib.loads((style.REPOSITORY / "pyproject.toml").read_text())
SDK = style.REPOSITORY / "services/udf_sdk/millstream_udf"
SDK_MAY_IMPORT = sys.stdlib_module_names | {"grpc", "google", "millstream_udf"}
SDK_MAY_IMPORT_LATE = {"pyarrow", "opentelemetry", "uvloop", "msgspec", "typing_extensions"}
"""Inside a function only, or for type checkers: what works with them when they are there."""
SDK_FOR_ARROW = {
    f"millstream_udf.{name}" for name in ("arrow", "arrow_json", "arrow_values", "json_rows", "reduce_arrow")
}
"""Modules that import pyarrow. Others import them inside a function only."""


def relative(path: Path) -> PurePosixPath:
    return PurePosixPath(path.relative_to(style.REPOSITORY).as_posix())


@pytest.mark.slow
def test_hand_written_modules_keep_the_rules() -> None:
    modules = list(style.modules())
    assert len(modules) > 50
    faults = [fault for path in modules for fault in style.faults_of_module(relative(path), path.read_text())]
    assert not faults, "\n".join(faults)


@pytest.mark.slow
def test_committed_texts_hold_nothing_of_one_machine() -> None:
    texts = list(style.texts())
    assert {"pyproject.toml", "requirements/dev.txt", ".ci/run"} <= {str(relative(path)) for path in texts}
    faults = [fault for path in texts for fault in style.faults_of_text(relative(path), path.read_text())]
    assert not faults, "\n".join(faults)


@pytest.mark.parametrize(
    ("path", "source", "fault"),
    [
        ("millstream/a.py", '"""A."""\nasyncio.create_task(run())\n', "a task without an owner"),
        ("millstream/a.py", '"""A."""\nasyncio.get_running_loop().create_task(run())\n', "a task without an owner"),
        ("millstream/a.py", '"""A."""\nfrom asyncio import ensure_future\n', "tasks without an owner"),
        ("millstream/spec/utils.py", '"""A."""\n', "the name says nothing"),
        ("services/reader/millstream_reader/helpers/a.py", '"""A."""\n', "the name says nothing"),
        ("tests/unit/test_a.py", "import time\ntime.sleep(1)\n", "time.sleep"),
        ("tests/unit/test_a.py", "from time import sleep\n", "time.sleep"),
        ("tests/unit/test_a.py", "async def test_a():\n    await asyncio.sleep(0.1)\n", "does not sleep"),
        ("tests/unit/test_a.py", "asyncio.ensure_future(run())\n", "drops it"),
        (
            "tests/unit/test_a.py",
            "def fill():\n    text = A.replace('FROM', x)\n    return text.replace('TO', y)\n",
            "fills in FROM, TO one after the other",
        ),
        ("tests/unit/test_a.py", "process = await asyncio.create_subprocess_exec('a')\n", "leaves this process behind"),
        ("tests/unit/test_a.py", "await asyncio.gather(a(), b())\n", "leaves the other calls behind"),
        ("millstream/a.py", '"""A."""\npath.write_text("")\n', "creates or empties a file"),
        ("millstream/a.py", '"""A."""\nwith open(f"{a}/b", "w") as file:\n    pass\n', "creates or empties a file"),
        ("services/a.py", '"""A."""\npath.open(mode="a+b")\n', "creates or empties a file"),
        ("services/a.py", '"""A."""\nos.open(path, os.O_WRONLY | os.O_TRUNC)\n', "creates or empties a file"),
        ("services/a.py", '"""A."""\npath.mkdir(parents=True)\n', "creates or empties a file"),
        ("connectors/millstream_connectors/a/sink/a.py", '"""A."""\nparse_json(value)\n', "rounds the numbers"),
        (
            "connectors/millstream_connectors/shared/formats/a.py",
            '"""A."""\nitem = from_json(value)\n',
            "rounds the numbers",
        ),
        ("millstream/a.py", '"""A."""\nvalue = json.loads(text)\n', "has no limit of depth"),
        ("services/a.py", '"""A."""\ndecode = json.JSONDecoder().raw_decode\n', "has no limit of depth"),
        ("services/a.py", '"""A."""\nmoment = datetime.fromtimestamp(given, UTC)\n', "outside the calendar"),
        ("millstream/a.py", '"""A."""\nsession = ClientSession(headers=headers)\n', "answers have no limit"),
        ("services/a.py", '"""A."""\nbody = await answer.content.read()\n', "a body of any size"),
        ("services/a.py", '"""A."""\nfrom urllib.request import urlopen\n', "answers have no limit"),
        ("services/a.py", '"""A."""\nimport requests\n', "answers have no limit"),
        ("tools/a.py", "x = 1\n" * 801, "801 lines, 800 are the most"),
        ("tools/a.py", "def run():\n" + "    x = 1\n" * 80, "run has 81 lines, 80 are the most"),
    ],
)
def test_a_broken_rule_is_seen(path: str, source: str, fault: str) -> None:
    faults = style.faults_of_module(PurePosixPath(path), source)
    assert len(faults) == 1
    assert fault in faults[0]


@pytest.mark.parametrize(
    ("path", "source"),
    [
        ("millstream/a.py", '"""A."""\ntasks.create_task(run())\n'),
        ("millstream/a.py", '"""A."""\ntry:\n    run()\nexcept Exception as error:\n    report(error)\n'),
        ("connectors/millstream_connectors/shared/kept.py", '"""A."""\nparse_json(marker)\n'),
        ("services/udf_sdk/a.py", '"""A."""\nvalue = json.loads(text)\n'),
        ("millstream/a.py", '"""A."""\nsession = ClientSession(response_class=BoundedResponse)\n'),
        ("services/a.py", '"""A."""\nbody = await answer.content.read(ANSWER_BYTES_MAX)\n'),
        ("millstream/__init__.py", ""),
        ("tests/unit/test_a.py", "async def test_a():\n    await asyncio.sleep(0)\n"),
        ("tests/unit/test_a.py", "async def test_a():\n    while not done():\n        await asyncio.sleep(0.01)\n"),
        ("tests/unit/test_a.py", "async def test_a():\n    async def slow():\n        await asyncio.sleep(1)\n"),
        ("tests/unit/test_a.py", "running = asyncio.ensure_future(run())\n"),
        ("tests/support/children.py", "process = await asyncio.create_subprocess_exec('a')\n"),
        ("tests/unit/test_a.py", "await asyncio.gather(a(), b(), return_exceptions=True)\n"),
        ("tools/a.py", "x = 1\n" * 800),
        ("tools/a.py", "def run():\n" + "    x = 1\n" * 79),
    ],
)
def test_what_the_rules_allow(path: str, source: str) -> None:
    assert style.faults_of_module(PurePosixPath(path), source) == []


@pytest.mark.parametrize(
    "line",
    [
        "see https://" + "pypi" + ".org/project/x",
        '"resolved": ' + '"https://example.com/x.tgz"',
        "--index" + "-url https://example.com/simple",
        'url = "ht' + 'tps://example.com/x.whl"',
        "cd /" + "home/someone",
        'DATA = "/' + 'root/data"',
    ],
)
def test_foreign_text_is_seen(line: str) -> None:
    assert len(style.faults_of_text(PurePosixPath("docs/a.md"), line)) == 1


def test_texts_may_name_places_that_exist_everywhere() -> None:
    text = "see https://docs.nats.io, the folder tests/work/one, ./home/x and /var/lib/millstream"
    assert style.faults_of_text(PurePosixPath("docs/a.md"), text) == []


@pytest.mark.slow
def test_every_folder_with_modules_is_a_package() -> None:
    """A package without `__init__.py` is invisible to the import rules."""
    folders = {path.parent for path in style.modules() if relative(path).parts[0] == "millstream"}
    folders |= {path.parent for path in style.modules() if len(relative(path).parts) > 3 and "services" in path.parts}
    folders |= {path.parent for path in style.modules() if len(relative(path).parts) > 2 and "connectors" in path.parts}
    missing = [str(relative(folder)) for folder in sorted(folders) if not (folder / "__init__.py").exists()]
    assert missing == []


def test_every_part_of_the_library_has_its_layer() -> None:
    """The import rules hold for what they name, so they must name everything."""
    contracts = CONFIGURATION["tool"]["importlinter"]["contracts"]
    (contract,) = [one for one in contracts if one["id"] == "layers"]
    named = {name.strip() for line in contract["layers"] for name in line.replace("|", ":").split(":")}
    package = style.REPOSITORY / "millstream"
    parts = {f"millstream.{path.stem}" for path in package.glob("*.py") if path.stem != "__init__"}
    parts |= {f"millstream.{path.parent.name}" for path in package.glob("*/__init__.py")}
    parts |= {path.parent.name for path in style.REPOSITORY.glob("services/*/millstream_*/__init__.py")}
    parts |= {path.parent.name for path in style.REPOSITORY.glob("connectors/millstream_*/__init__.py")}
    assert parts - named == set()
    assert named - parts == set()


def test_the_layers_are_in_the_page_as_they_are_in_the_rules() -> None:
    assert layers.PAGE.read_text(encoding="utf-8") == layers.page(), "run tools/layers.py"


@pytest.mark.slow
def test_the_sdk_needs_grpcio_and_protobuf_only() -> None:
    faults = []
    for path in sorted(SDK.rglob("*.py")):
        tree = ast.parse(path.read_text())
        at_import = {id(node) for node in tree.body}
        is_for_arrow = f"millstream_udf.{path.stem}" in SDK_FOR_ARROW
        for node in ast.walk(tree):
            match node:
                case ast.Import():
                    modules = {alias.name for alias in node.names}
                case ast.ImportFrom():
                    modules = {node.module or "", *(f"{node.module}.{alias.name}" for alias in node.names)}
                case _:
                    continue
            names = {module.partition(".")[0] for module in modules}
            if is_for_arrow:
                names.discard("pyarrow")
            elif id(node) in at_import:
                names |= modules & SDK_FOR_ARROW
            allowed = SDK_MAY_IMPORT if id(node) in at_import else SDK_MAY_IMPORT | SDK_MAY_IMPORT_LATE
            faults += [f"{relative(path)}:{node.lineno}: {name}" for name in sorted(names - allowed)]
    assert not faults, "\n".join(faults)


@pytest.mark.process
def test_the_wire_modules_are_what_the_proto_files_generate() -> None:
    command = [sys.executable, str(style.REPOSITORY / "tools/generate_protos.py"), "--check"]
    check = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert check.returncode == 0, check.stdout + check.stderr


def test_both_distributions_have_one_version() -> None:
    sdk = tomllib.loads((style.REPOSITORY / "services/udf_sdk/pyproject.toml").read_text())
    assert CONFIGURATION["project"]["version"] == sdk["project"]["version"]
    assert f"millstream-udf=={sdk['project']['version']}" in CONFIGURATION["project"]["dependencies"]


def test_each_file_that_may_round_numbers_parses_json() -> None:
    for path in style.MAY_ROUND:
        source = (style.REPOSITORY / path).read_text()
        assert any(f"{name}(" in source for name in style.ROUNDS), f"{path} needs no exception any more"
