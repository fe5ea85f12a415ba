"""What users' data holds is shown, and obeyed by no terminal: every command, and everything a run prints."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from millstream.printable import in_line, printable
from millstream_runner.cli.main import main
from millstream_runner.local.logfiles import format_entry, short_entry
from tests.mesh.running import Ended, called, command

TITLE = "\x1b]0;OWNED\x07"
COLOUR = "\x9b31m"
REVERSED = "\u202e"
HOSTILE = f"{TITLE}{COLOUR}{REVERSED}\r\x08\x00x\nrunner: all is well"
OBEYED = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u200e\u200f\u2028-\u202e\u2066-\u2069]")

FUNCTIONS = f"""
import json
import logging

import millstream_udf as udf

HOSTILE = {HOSTILE!r}


@udf.map
def dress(record):
    number = json.loads(record.value)["number"]
    return udf.Message(HOSTILE + str(number), keys=[HOSTILE], headers={{HOSTILE: b"x"}})


@udf.map
def noisy(record):
    print(HOSTILE, flush=True)
    logging.getLogger(HOSTILE).warning("seen %s", HOSTILE, extra={{"what": HOSTILE}})
    if record.value.endswith(b"0"):
        raise ValueError(HOSTILE)
    if record.value.endswith(b"1"):
        raise udf.DeadLetter(HOSTILE)
    return udf.Message(record.value, keys=[HOSTILE])
"""
PIPELINE = """
apiVersion: millstream.io/v1alpha1
kind: Pipeline
metadata: {name: p}
spec:
  vertices:
    - name: in
      source: {generator: {records: 3, rpu: 0}}
    - name: dress
      udf: {python: 'functions.py:dress'}
    - name: map
      udf: {python: 'functions.py:noisy', retryStrategy: {backoff: {steps: 1}}}
    - name: out
      sink: {log: {}}
    - name: dead
      sink: {file: {path: dead, format: jsonl}}
  edges:
    - {from: in, to: dress}
    - {from: dress, to: map}
    - {from: map, to: out}
    - {from: map, to: dead, kind: deadLetter}
"""


def assert_obeys_nothing(text: str) -> None:
    found = OBEYED.search(text)
    assert found is None, repr(text[max(0, found.start() - 60) : found.end() + 60])


def assert_tame(ended: Ended) -> None:
    assert_obeys_nothing(ended.out + ended.err)
    # A part of a value that begins a line could be taken for one of ours.
    assert not re.search(r"^runner: all is well", ended.out + ended.err, re.MULTILINE)


async def test_no_command_prints_what_a_terminal_obeys(tmp_path: Path) -> None:
    (tmp_path / "functions.py").write_text(FUNCTIONS)
    (tmp_path / "pipeline.yaml").write_text(PIPELINE)

    run = await command(tmp_path, "run", "pipeline.yaml")

    assert run.exit_code == 0, run.err
    assert_tame(run)
    # The line stays the JSON that it is.
    (shown,) = [json.loads(line) for line in run.out.splitlines() if line.startswith("{")]
    assert shown["keys"] == [HOSTILE]
    for arguments in (
        ("logs",),
        ("logs", "-o", "json"),
        ("status",),
        ("peek", "dress-map", "--from", "1"),
        ("peek", "dress-map", "--from", "1", "-o", "json"),
        ("deadletters", "list"),
        ("deadletters", "list", "-o", "json"),
        ("deadletters", "list", HOSTILE),
        ("logs", HOSTILE),
        ("logs", "--since", HOSTILE),
        ("graph", f"{HOSTILE}.yaml"),
    ):
        # What the user types may have several lines, but no zero byte.
        typed = [argument.replace("\0", "").replace("\n", "") for argument in arguments]
        done = await called(tmp_path, *typed)
        assert "OWNED" in done.out + done.err or arguments == ("status",), arguments
        assert_tame(done)


@pytest.mark.parametrize("command_name", ["validate", "graph", "compile", "run"])
def test_a_file_is_quoted_in_messages_without_its_control_characters(
    tmp_path: Path, command_name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / f"{TITLE}.yaml"
    quoted = json.dumps(HOSTILE)
    file.write_text(f"apiVersion: {quoted}\nkind: Pipeline\nmetadata: {{name: {quoted}}}\nspec: {{{quoted}: 1}}\n")

    assert main([command_name, str(file)]) == 2

    said = capsys.readouterr()
    assert "OWNED" in said.out + said.err
    assert_obeys_nothing(said.out + said.err)


@given(st.text())
def test_what_is_printable_holds_nothing_obeyed_and_the_rest_unchanged(text: str) -> None:
    shown = printable(text)

    assert_obeys_nothing(shown)
    shown.encode()
    assert json.loads(printable(json.dumps(text, ensure_ascii=False))) == text
    assert "\n" not in in_line(text)
    if text.isascii() and text.isprintable():
        assert shown == text


@given(st.dictionaries(st.sampled_from(["message", "exception", "process", "time", "level", "what"]), st.text()))
def test_no_field_of_a_log_line_begins_a_line(entry: dict[str, str]) -> None:
    for text in (format_entry(entry), short_entry(entry)):
        assert all(line.startswith("    ") for line in text.split("\n")[1:])
