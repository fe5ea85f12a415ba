"""Completion: the candidates where Tab is pressed, in the real shells as well."""

from __future__ import annotations

import io
import json
import os
import pty
import re
import select
import shlex
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from millstream.plan import resolved
from millstream.spec.loading import load
from millstream_runner.cli import completion
from millstream_runner.cli.arguments import parser
from millstream_runner.cli.completing import VALUES
from millstream_runner.cli.main import main
from tests.support.sizes import first
from tests.unit.cli.test_grammar import ALL

LIMIT_S = 180.0
PIPELINE = """\
apiVersion: millstream.io/v1alpha1
kind: Pipeline
metadata: {name: orders}
spec:
  vertices:
    - {name: read, source: {generator: {records: 5}}}
    - {name: price, udf: {python: "json:loads", retryStrategy: {onFailure: deadLetter}}}
    - {name: out, sink: {log: {}}}
    - {name: refused, sink: {log: {}}}
  edges:
    - {from: read, to: price}
    - {from: price, to: out, name: priced}
    - {from: price, to: refused, kind: deadLetter}
"""


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "pipeline.yaml").write_text(PIPELINE)
    (tmp_path / "notes.txt").write_text("")
    (tmp_path / "data").mkdir()
    (tmp_path / ".hidden").mkdir()
    monkeypatch.chdir(tmp_path)
    return tmp_path


def words(*typed: str) -> list[str]:
    """The candidates for the last word."""
    line = " ".join(["millstream", *typed])
    environment = {"COMP_LINE": line, "COMP_POINT": str(len(line)), "_ARGCOMPLETE": "1", "_ARGCOMPLETE_SHELL": "bash"}
    answer = io.StringIO()
    with pytest.MonkeyPatch.context() as patch:
        for name, value in (environment | {"_ARGCOMPLETE_IFS": "\n", "_ARGCOMPLETE_SUPPRESS_SPACE": "1"}).items():
            patch.setenv(name, value)
        # It would take a descriptor that may be another's.
        patch.setattr(completion.Finder, "_init_debug_stream", lambda self: None)
        with pytest.raises(SystemExit, match="0"):
            completion.answer(parser(), answer)
    return answer.getvalue().split()


def test_only_functions_with_a_process_of_their_own_can_be_debugged(here: Path) -> None:
    window = '    - {name: sums, udf: {python: "json:loads", groupBy: {window: {fixed: {length: 1m}}}}}\n'
    (here / "pipeline.yaml").write_text(PIPELINE.replace("  edges:\n", f"{window}  edges:\n"))
    assert words("run", "--debug-function", "") == ["price"]
    assert words("run", "pipeline.yaml", "--debug-function", "") == ["price"]


def test_a_name_that_is_missing_is_one_of_those_here(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["tap"]) == 2
    assert "EDGE is missing: " in (said := capsys.readouterr().err)
    assert "; known are: read-price, priced, price-refused-dead-letter\n" in said
    (here / "other.yaml").write_text(PIPELINE.replace("priced", "other"))
    assert main(["peek", "--file", "other.yaml"]) == 2
    assert "; known are: read-price, other, price-refused-dead-letter\n" in capsys.readouterr().err
    # A file that is being written has no names, which causes no other message.
    (here / "other.yaml").write_text("spec: [")
    (here / "pipeline.yaml").unlink()
    assert main(["tap"]) == 2
    assert "EDGE is missing: " in (said := capsys.readouterr().err)
    assert "there are" not in said


@pytest.mark.slow
def test_commands_and_options(here: Path) -> None:
    assert words("st") == ["status", "state"]
    assert {"run", "init", "doctor"} <= set(words(""))
    assert words("deadletters", "") == ["list", "replay"]
    assert words("run", "--q") == ["--quiet"]
    assert "--fresh" in words("run", "-")
    assert "--fresh" not in words("run", "--fresh", "-"), "given already"
    assert "--forget" in words("run", "--forget", "read", "-"), "can be repeated"
    assert words("version", "") == ["--help", "--debug", "--output"]
    assert "--pipeline" not in words("status", "--data-dir", "data", "-"), "they exclude each other"
    assert words("no-such-command", "x") == []


def test_values_that_are_chosen(here: Path) -> None:
    assert words("run", "--durability", "") == ["fsync", "process"]
    assert words("run", "--durability=f") == ["--durability=fsync"]
    assert words("status", "-o", "j") == ["json"]
    assert words("run", "--ledger", "") == ["jetstream", "redis"]
    assert words("completion", "") == ["bash", "zsh", "fish"]
    assert words("chaos", "m") == ["mesh"]
    assert words("chaos", "mesh", "--faults", "kill,p") == ["kill,pause"]
    assert words("watermark", "pipeline.yaml", "--set-back", "") == ["now"]
    assert set(words("init", "x", "--template", "")) >= {"map", "reduce"}


@pytest.mark.slow
def test_files(here: Path) -> None:
    assert words("run", "") == ["data/", "pipeline.yaml"]
    assert words("run", ".h") == [".hidden/"]
    assert words("run", "./p") == ["./pipeline.yaml"]
    assert words("run", "--data-dir", "") == ["data/"]
    assert words("deadletters", "list", "n") == ["notes.txt"]
    assert words("run", "nowhere/") == []


def test_names_in_the_file_that_is_given(here: Path) -> None:
    assert words("logs", "pipeline.yaml", "p") == ["price"]
    assert words("peek", "pipeline.yaml", "") == ["read-price", "priced", "price-refused-dead-letter"]
    (here / "other.yaml").write_text(PIPELINE.replace("priced", "other"))
    assert words("peek", "other.yaml", "o") == ["other"]
    assert words("deadletters", "replay", "pipeline.yaml", "--to", "o") == ["out"]
    assert words("run", "pipeline.yaml", "--forget", "") == ["read"]
    assert words("status", "--broker", "nats://b", "--file", "p") == ["pipeline.yaml"]


@pytest.mark.slow
def test_names_without_a_file_are_those_of_runs_or_files_here(here: Path) -> None:
    assert words("peek", "priced") == ["priced"]
    data = here / ".millstream" / "other"
    data.mkdir(parents=True)
    plan = load(here / "pipeline.yaml").plan
    changed = json.loads(resolved.dump(plan, here))
    changed["pipeline"]["spec"]["edges"][1]["name"] = "renamed"
    source = changed["pipeline"]["spec"]["vertices"][0]
    changed["pipeline"]["spec"]["vertices"].append({**source, "name": "gone"})
    (data / "pipeline.json").write_text(json.dumps(changed))
    assert words("status", "--pipeline", "") == ["other"]
    assert "renamed" in words("peek", "")
    assert words("run", "--forget", "gone") == ["gone"], "what is forgotten is in no file any more"
    assert words("run", "--data-dir", str(data), "--forget", "gone") == ["gone"]
    assert "renamed" in words("peek", "--pipeline", "other", "")
    assert "renamed" in words("peek", "--data-dir", str(data), "")
    assert "priced" not in words("peek", "")


def test_a_file_that_is_being_written_gives_no_names_and_no_message(
    here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for text in ("spec: {vertices: [", "spec: {vertices: 5}", "spec: []", "- 1", ""):
        (here / "pipeline.yaml").write_text(text)
        assert words("logs", "pipeline.yaml", "p") == []
        assert capsys.readouterr().err == ""


def test_a_line_that_is_wrong_is_completed_where_that_is_possible(here: Path) -> None:
    assert words("run", "--no-such", "--also") == []
    assert words("run", "--no-such", "pi") == ["pipeline.yaml"]
    assert words("run", "--workers", "many", "--fre") == ["--fresh"]


def test_codes() -> None:
    assert "MS-4010" in words("explain", "MS-40")
    assert "ms-4010" in words("explain", "ms-40")


def test_it_is_known_what_may_stand_wherever_a_value_is_taken() -> None:
    unknown = {
        f"{action.metavar} of {' '.join(path)}"
        for path, command in ALL.items()
        for action in command._actions
        if action.nargs != 0 and action.choices is None and action.metavar not in VALUES
    }
    assert not unknown, "cli/completing.py, VALUES, says nothing of these: give each a way to complete it, or None"


def environment() -> dict[str, str]:
    scripts = str(Path(sys.executable).parent)
    kept = {name: value for name, value in os.environ.items() if name not in ("NO_COLOR", "FORCE_COLOR")}
    return {**kept, "PATH": f"{scripts}:{kept['PATH']}", "TERM": "xterm", "PS1": "$ ", "HOME": "/nonexistent"}


@pytest.mark.process
@pytest.mark.parametrize(
    ("typed", "found"),
    first(
        4,
        [
            ("millstream valid", ["validate"]),
            ("millstream run ", ["data/", "pipeline.yaml", "with\\ space.yaml"]),
            ("millstream run pipeline.yaml --durability=p", ["process"]),
            ("millstream run pipeline.yaml --durability=", ["fsync", "process"]),
            ("""millstream logs "with space.yaml" r""", ["read", "refused"]),
            ("""millstream logs with\\ space.yaml pr""", ["price"]),
            ("millstream run --no-such --also", []),
        ],
    ),
)
def test_bash_asks_and_takes_the_answer(here: Path, typed: str, found: list[str]) -> None:
    shutil.copy(here / "pipeline.yaml", here / "with space.yaml")
    script = (
        'eval "$(millstream completion bash)"\ncompopt() { :; }\nCOMP_WORDBREAKS=" =:"\n'
        f"COMP_LINE={shlex.quote(typed)}; COMP_POINT=${{#COMP_LINE}}\n"
        '_python_argcomplete millstream\nprintf "%s\\n" "${COMPREPLY[@]}"\n'
    )
    command = ["bash", "--norc", "-c", script]
    done = subprocess.run(command, capture_output=True, text=True, env=environment(), check=True)
    assert done.stderr == ""
    assert sorted(filter(None, done.stdout.splitlines())) == sorted(found)


INTERACTIVE = {
    "bash": (["bash", "--norc", "--noprofile", "-i"], 'eval "$(millstream completion bash)"'),
    "zsh": (["zsh", "-f", "-i"], "autoload -Uz compinit; compinit -D -u; source <(millstream completion zsh)"),
    "fish": (["fish", "--no-config", "-i"], "millstream completion fish | source"),
}


@pytest.mark.process
@pytest.mark.parametrize("shell", INTERACTIVE)
def test_tab_completes_in_a_real_shell(here: Path, shell: str) -> None:
    """Words that are not whole are completed, and the line is run: only whole ones print this."""
    command, setting = INTERACTIVE[shell]
    if shutil.which(shell) is None:
        pytest.skip(f"{shell} is not installed")
    pid, terminal = pty.fork()
    if pid == 0:
        os.execvpe(command[0], command, environment() | {"HOME": str(here), "XDG_CACHE_HOME": str(here)})
    try:
        os.write(terminal, f"{setting}; echo re''ady\n".encode())
        _until(terminal, "ready")
        os.write(terminal, b"cd . && millstream gra\tpi\t\n")
        _until(terminal, "pipeline orders")
        os.write(terminal, b"millstream vali\t--file-\tpipe\t\n")
        _until(terminal, "pipeline orders is valid")
    finally:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
        os.close(terminal)


def _until(terminal: int, wanted: str) -> None:
    seen = ""
    end_s = time.monotonic() + LIMIT_S
    while wanted not in seen:
        left_s = end_s - time.monotonic()
        assert left_s > 0, f"no {wanted!r} in {seen!r}"
        if not select.select([terminal], [], [], left_s)[0]:
            continue
        seen += re.sub(r"\x1b\[[\d;?]*[a-zA-Z]", "", os.read(terminal, 65536).decode(errors="replace"))
