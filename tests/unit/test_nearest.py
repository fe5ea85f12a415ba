"""What a misspelt word probably means, wherever one is typed."""

from __future__ import annotations

from pathlib import Path

import pytest

from millstream.nearest import did_you_mean, near_file, nearest, one_of
from millstream.spec.checks import local_problems
from millstream.spec.loading import FileError, load_text

PIPELINE = """\
apiVersion: millstream.io/v1alpha1
kind: Pipeline
metadata: {name: p}
spec:
  limits: {readBatchSize: 3}
  vertices:
    - name: read
      source: {generator: {records: 5}}
    - name: price
      udf: {python: "functions.py:price", retryStrategy: {onFailure: stop}}
    - name: write
      sink: {file: {path: out, format: jsonl}}
  edges:
    - {from: read, to: price}
    - {from: price, to: write}
"""


@pytest.mark.parametrize(
    ("word", "known", "found"),
    [
        ("stauts", ["start", "status"], "status"),
        ("STATUS", ["start", "status"], "status"),
        ("onfailure", ["onFailure"], "onFailure"),
        ("x", ["status"], None),
        ("", ["status"], None),
        ("status", [], None),
    ],
)
def test_the_nearest(word: str, known: list[str], found: str | None) -> None:
    assert nearest(word, known) == found
    assert did_you_mean(word, known) == (f"; did you mean {found}?" if found else "")


def test_what_is_expected() -> None:
    assert one_of("retri", ["retry", "drop"]) == "one of retry, drop; did you mean retry?"
    assert one_of("zzz", ["retry", "drop"]) == "one of retry, drop"
    assert one_of("zzz", ["retry"]) == "retry"


def test_files_beside_one_that_is_not_there(tmp_path: Path) -> None:
    for name in ("pipeline.yaml", "zebra.yaml", ".pipline.yaml.swp"):
        (tmp_path / name).write_text("")
    meant = f"; did you mean {tmp_path / 'pipeline.yaml'}?"
    assert near_file(tmp_path / "pipline.yaml") == meant
    assert near_file(tmp_path / "pipeline.yml") == meant
    assert near_file(tmp_path / "orders.yaml") == ""
    assert near_file(tmp_path / "nowhere" / "pipeline.yaml") == ""


@pytest.mark.parametrize(
    ("right", "wrong", "said"),
    [
        ("vertices:", "vertexes:", "did you mean `vertices`?"),
        ("limits:", "limit:", "did you mean `limits`?"),
        ("readBatchSize", "batchSize", "did you mean `readBatchSize`?"),
        ("source: {g", "sorce: {g", "did you mean `source`?"),
        ("sink: {file", "sink: {flie", "did you mean `file`?"),
        ("generator", "genrator", "did you mean `generator`?"),
        ("records: 5", "record: 5", "did you mean `records`?"),
        ("retryStrategy", "retryStratgy", "did you mean `retryStrategy`?"),
        ("onFailure: stop", "onFailure: stopp", "one of retry, drop, deadLetter, stop; did you mean stop?"),
        ("format: jsonl", "format: json", "did you mean jsonl?"),
        ("kind: Pipeline", "knid: Pipeline", "did you mean `kind`?"),
        ("from: price", "from: prise", "one of price, read, write; did you mean price?"),
        ("from: read, to", "form: read, to", "did you mean `from`?"),
        ("  edges:", "  edge:", "did you mean `edges`?"),
    ],
)
def test_fields_and_values_of_a_pipeline_file(right: str, wrong: str, said: str, tmp_path: Path) -> None:
    assert right in PIPELINE
    with pytest.raises(FileError) as caught:
        load_text(PIPELINE.replace(right, wrong), tmp_path / "p.yaml")
    assert any(said in str(problem) for problem in caught.value.problems), str(caught.value)


@pytest.mark.parametrize(
    ("right", "wrong", "said"),
    [
        ("functions.py:price", "function.py:price", "did you mean {here}/functions.py?"),
        ("functions.py:price", "functions.py:prise", "one of price, refund; did you mean price?"),
    ],
)
def test_what_a_pipeline_file_refers_to(right: str, wrong: str, said: str, tmp_path: Path) -> None:
    (tmp_path / "functions.py").write_text("def price(value): ...\ndef refund(value): ...\n")
    loaded = load_text(PIPELINE.replace(right, wrong), tmp_path / "p.yaml")
    (problem,) = local_problems(loaded)
    assert said.format(here=tmp_path) in str(problem)
