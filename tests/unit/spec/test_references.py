"""Values that are in the environment or a file: how they are written, looked up, and kept out of what is stored."""

from __future__ import annotations

from pathlib import Path

import pytest

from millstream import codes
from millstream.plan import resolved
from millstream.spec.loading import load_text
from millstream.spec.problems import SpecError
from millstream.spec.references import (
    SECRETS_VARIABLE,
    VALUE_BYTES_MAX,
    Reference,
    SecretKey,
    referenced_files,
    resolve,
)
from millstream_connectors.http.settings import HttpSink
from tests.support.errors import raises

PIPELINE = """
apiVersion: millstream.io/v1alpha1
kind: Pipeline
metadata: {name: p}
spec:
  spark: {conf: {spark.hadoop.fs.s3a.secret.key: {env: S3_KEY}}}
  vertices:
    - name: in
      source: {generator: {}, transformer: {python: "f.py:f", env: [{name: A, value: {file: a}}, {name: B, value: b}]}}
    - name: out
      sink: {http: {url: "http://127.0.0.1:1/", headers: {Authorization: HEADER}}}
  edges: [{from: in, to: out}]
"""
REFERENCE = '{env: TOKEN, prefix: "Bearer "}'


def problems_of(header: str) -> list[tuple[str, str]]:
    with pytest.raises(SpecError) as caught:
        load_text(PIPELINE.replace("HEADER", header), "p.yaml")
    return [(problem.path, problem.what) for problem in caught.value.problems]


def test_a_reference_stays_one_in_what_is_stored(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("TOKEN", "s3cret")
    loaded = load_text(PIPELINE.replace("HEADER", REFERENCE), tmp_path / "p.yaml")
    stored = resolved.dump(loaded.plan, loaded.base_dir)
    assert "s3cret" not in stored
    again = resolved.load(stored).pipeline
    sink = again.spec.vertices[1].sink
    assert sink is not None
    assert isinstance(sink.settings, HttpSink)
    value = sink.settings.headers["Authorization"]
    assert value == Reference(env="TOKEN", prefix="Bearer ")
    assert resolve(value, tmp_path, "a header") == "Bearer s3cret"


@pytest.mark.parametrize(
    ("written", "path", "what"),
    [
        ("{env: A, file: b}", "", "a reference has `env`, `file` together"),
        ("{}", "", "a reference has none of `env`, `file`, `secret`"),
        ("{secret: {name: a}}", ".secret.key", "`key` is missing"),
        ("{secret: {name: ../a, key: b}}", ".secret.name", "'../a' is not the name of a Secret"),
        ("{secret: {name: a, key: ..}}", ".secret.key", "'..' is not a key of a Secret"),
        ("{environment: A, env: B}", ".environment", "unknown field `environment`"),
        ("{env: 1}", ".env", "1 has the wrong type"),
        ("7", "", "7 has the wrong type"),
        ('"Bearer ${TOKEN}"', "", "`${TOKEN}` is not expanded: pipeline files have no variables"),
    ],
)
def test_what_is_no_reference_is_said_at_its_place(written: str, path: str, what: str) -> None:
    place = f"spec.vertices[1].sink.http.headers.Authorization{path}"
    assert (place, what) in problems_of(written)


def test_what_other_programs_expand_is_theirs() -> None:
    text = PIPELINE.replace("HEADER", "x")
    text = text.replace(
        "    - name: out\n", "    - name: sh\n      udf: {command: [sh, -c, 'echo ${X}']}\n    - name: out\n"
    )
    text = text.replace("edges: [{from: in, to: out}]", "edges: [{from: in, to: sh}, {from: sh, to: out}]")
    assert load_text(text, "p.yaml").pipeline.name == "p"


@pytest.mark.parametrize(
    ("contents", "text"), [(b"a\n", "a"), (b"a\r\n", "a"), (b" a b", " a b"), ("ü\n\n".encode(), "ü\n")]
)
def test_one_line_break_at_the_end_of_a_file_does_not_count(tmp_path: Path, contents: bytes, text: str) -> None:
    (tmp_path / "secret").write_bytes(contents)
    assert resolve(Reference(file="secret"), tmp_path, "x") == text


SECRET = "{secret: {name: warehouse, key: api.token}, prefix: 'Bearer '}"


@pytest.mark.parametrize(
    ("written", "text"), [(SECRET, "Bearer s3cret"), ("{name: warehouse, key: api.token}", "s3cret")]
)
def test_a_key_of_a_kubernetes_secret_is_a_file_where_secrets_are_mounted(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, written: str, text: str
) -> None:
    loaded = load_text(PIPELINE.replace("HEADER", written), tmp_path / "p.yaml")
    again = resolved.load(resolved.dump(loaded.plan, loaded.base_dir)).pipeline
    sink = again.spec.vertices[1].sink
    assert sink is not None
    assert isinstance(sink.settings, HttpSink)
    value = sink.settings.headers["Authorization"]
    monkeypatch.setenv(SECRETS_VARIABLE, str(tmp_path / "mounted"))
    place = f"{tmp_path}/mounted/warehouse"
    absent = f"key api.token of the Kubernetes Secret warehouse: there is no file {place}/api.token"
    with raises(codes.SECRET_MISSING, match=f"{absent}; mount the Secret at {place}, or name"):
        resolve(value, tmp_path, "a header")
    (tmp_path / "mounted" / "warehouse").mkdir(parents=True)
    (tmp_path / "mounted" / "warehouse" / "api.token").write_text("s3cret\n")
    assert resolve(value, tmp_path, "a header") == text
    assert list(referenced_files(value, tmp_path)) == [tmp_path / "mounted" / "warehouse" / "api.token"]


def test_secrets_are_mounted_where_the_page_says(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(SECRETS_VARIABLE, raising=False)
    value = Reference(secret=SecretKey(name="a", key="b"))
    assert list(referenced_files(value, Path("/base"))) == [Path("/run/secrets/millstream/a/b")]


def test_a_variable_of_a_function_takes_numaflows_reference_to_a_secret() -> None:
    text = PIPELINE.replace("HEADER", "x").replace(
        "{name: B, value: b}", "{name: B, valueFrom: {secretKeyRef: {name: n, key: k, optional: false}}}"
    )
    source = load_text(text, "p.yaml").pipeline.spec.vertices[0].source
    assert source is not None
    assert source.transformer is not None
    assert source.transformer.env[1].value == Reference(secret=SecretKey(name="n", key="k"))


@pytest.mark.parametrize(
    ("contents", "why"),
    [
        (b"", "is empty"),
        (b"\n", "is empty"),
        (b"\xff", "is not UTF-8"),
        (b"x" * (VALUE_BYTES_MAX + 1), f"larger than {VALUE_BYTES_MAX} bytes"),
        (None, "there is no file"),
    ],
)
def test_a_file_without_a_value_is_refused(tmp_path: Path, contents: bytes | None, why: str) -> None:
    if contents is not None:
        (tmp_path / "secret").write_bytes(contents)
    with raises(codes.SECRET_MISSING, match=f"the header of x: .*{why}"):
        resolve(Reference(file="secret"), tmp_path, "the header of x")
