"""What a machine lacks for a pipeline, found without importing user code."""

import ast
import os
from pathlib import Path
from typing import Any

import pytest
from ruamel.yaml import YAML

from millstream.spec import checks, needs
from millstream.spec.loading import LoadedPipeline, load
from millstream_worker.kinds import reduce


@pytest.fixture
def base(tmp_path: Path) -> Path:
    """A directory with data, a program and modules that must not be imported."""
    (tmp_path / "in.csv").write_text("a\n1\n")
    (tmp_path / "tool").write_text("#!/bin/sh\n")
    (tmp_path / "tool").chmod(0o755)
    (tmp_path / "plain").write_text("no program")
    (tmp_path / "sub").mkdir()
    body = "raise SystemExit('imported')\ndef f(value): return value\ng = h = f\ndef _private(): ...\n"
    (tmp_path / "steps.py").write_text(body)
    (tmp_path / "sub" / "__init__.py").write_text("")
    (tmp_path / "sub" / "deep.py").write_text(body)
    (tmp_path / "broken.py").write_text("def f(:\n")
    (tmp_path / "star.py").write_text("from steps import *\n")
    return tmp_path


def loaded(base: Path, **vertices: dict[str, Any]) -> LoadedPipeline:
    """A pipeline of the given source, udf or sink, completed to a whole one."""
    source = vertices.pop("source", {"generator": {}})
    sink = vertices.pop("sink", {"log": {}})
    udf = vertices.pop("udf", {"builtin": {"name": "cat"}})
    more = vertices.pop("more", {})
    spec = {
        "vertices": [
            {"name": "in", "source": source, **more},
            {"name": "m", "udf": udf},
            {"name": "out", "sink": sink},
        ],
        "edges": [{"from": "in", "to": "m"}, {"from": "m", "to": "out"}],
    }
    file = base / "pipeline.yaml"
    head = {"apiVersion": "millstream.io/v1alpha1", "kind": "Pipeline", "metadata": {"name": "p"}}
    with file.open("w") as stream:
        YAML(typ="safe", pure=True).dump({**head, "spec": spec}, stream)
    return load(file)


def found(pipeline: LoadedPipeline) -> list[tuple[str, str]]:
    problems = checks.local_problems(pipeline)
    assert all(problem.line > 0 and problem.expected for problem in problems)
    base = f"{pipeline.base_dir}/"
    return [(problem.path.removeprefix("spec.vertices"), problem.what.replace(base, "")) for problem in problems]


@pytest.mark.parametrize(
    "udf",
    [
        {"python": "steps.py:f"},
        {"python": "steps:h"},
        {"python": "sub.deep:f"},
        {"python": "deep:g", "workingDir": "sub"},
        {"python": "deep:g", "env": [{"name": "PYTHONPATH", "value": "sub"}], "workingDir": "sub"},
        {"python": "star:anything"},
        {"python": "json.decoder:scanstring"},
        {"command": ["sh", "-c", "true"]},
        {"command": ["./tool"]},
        {"command": ["../tool"], "workingDir": "sub"},
    ],
)
def test_programs_that_are_there(base: Path, udf: dict[str, Any]) -> None:
    assert found(loaded(base, udf=udf)) == []


@pytest.mark.parametrize(
    ("udf", "path", "what"),
    [
        ({"python": "none.py:f"}, "python", "there is no file none.py"),
        ({"python": "steps.py:nope"}, "python", "steps.py has no `nope`"),
        ({"python": "steps:nope"}, "python", "steps.py has no `nope`"),
        ({"python": "sub.none:f"}, "python", "there is no Python module `sub.none`"),
        ({"python": "steps.none:f"}, "python", "there is no Python module `steps.none`"),
        ({"python": "broken.py:f"}, "python", "broken.py is not Python: "),
        ({"python": "steps:f", "workingDir": "away"}, "workingDir", "there is no directory away"),
        ({"command": ["no-such-program"]}, "command[0]", "there is no program `no-such-program` in PATH"),
        (
            {"command": ["sh"], "env": [{"name": "PATH", "value": "/nowhere"}]},
            "command[0]",
            "there is no program `sh` in PATH",
        ),
        ({"command": ["./none"]}, "command[0]", "there is no file none"),
        ({"command": ["./plain"]}, "command[0]", "plain is not executable"),
        ({"container": {"image": "i"}}, "container", "this machine's runner does not start containers"),
    ],
)
def test_programs_that_are_not(base: Path, udf: dict[str, Any], path: str, what: str) -> None:
    ((found_path, found_what),) = found(loaded(base, udf=udf))
    assert found_path == f"[1].udf.{path}"
    assert found_what.startswith(what)


def test_every_program_of_a_pipeline_is_looked_at(base: Path) -> None:
    missing = {"python": "steps:nope"}
    pipeline = loaded(
        base,
        source={"udsource": missing, "transformer": missing},
        sink={"udsink": missing, "fallback": {"udsink": missing}},
    )
    assert sorted(path for path, _ in found(pipeline)) == [
        "[0].source.transformer.python",
        "[0].source.udsource.python",
        "[2].sink.fallback.udsink.python",
        "[2].sink.udsink.python",
    ]


def test_inputs(base: Path) -> None:
    assert found(loaded(base, source={"file": {"paths": ["*.csv"]}})) == []
    assert found(loaded(base, source={"file": {"paths": ["*.log"], "follow": True}})) == []
    assert found(loaded(base, source={"file": {"paths": ["*.csv", "*.log", "su*"]}})) == [
        ("[0].source.file.paths[1]", "'*.log' matches no file"),
        ("[0].source.file.paths[2]", "'su*' matches only directories"),
    ]


def test_http_sources(base: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def http(**auth: object) -> LoadedPipeline:
        return loaded(base, source={"http": {"auth": auth}})

    monkeypatch.delenv("TOKEN_FOR_TEST", raising=False)
    of_env, place = {"env": "TOKEN_FOR_TEST"}, "[0].source.http.auth.token"
    assert found(http(token=of_env)) == [(place, "the environment variable TOKEN_FOR_TEST is not set")]
    monkeypatch.setenv("TOKEN_FOR_TEST", "t")
    assert found(http(token=of_env)) == []
    assert found(http(token={"file": "plain"})) == []
    assert found(http(token={"file": "none"})) == [(place, "there is no file none")]
    monkeypatch.setenv("MILLSTREAM_SECRETS", "/no/such")
    [(where, why)] = found(http(token={"secret": {"name": "n", "key": "k"}}))
    assert (where, "there is no file /no/such/n/k; mount the Secret" in why) == (place, True)
    two = {"partitions": 2, "replicas": 2}
    assert found(loaded(base, source={"http": {"port": 0}}, more=two)) == []
    assert found(loaded(base, source={"http": {}}, more=two)) == [
        ("[0].replicas", "2 processes cannot listen on the same port of this machine")
    ]


def test_an_absent_secret_within_settings_is_found_once(base: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("KEY_FOR_TEST", raising=False)
    store = {"accessKey": "a", "secretKey": {"env": "KEY_FOR_TEST"}}
    catalog = {"rest": "http://127.0.0.1:1", "token": {"env": "KEY_FOR_TEST"}}
    why = "the environment variable KEY_FOR_TEST is not set"
    for settings, members in (
        ({"file": {"paths": ["s3://a/b"], "store": store}}, ["store.secretKey"]),
        ({"delta": {"path": "s3://a/b", "store": store}}, ["store.secretKey"]),
        ({"iceberg": {"catalog": catalog, "table": "a.b", "store": store}}, ["catalog.token", "store.secretKey"]),
    ):
        (kind,) = settings
        assert found(loaded(base, source=settings)) == [(f"[0].source.{kind}.{member}", why) for member in members]


def test_notes_of_models_within_settings_have_their_places(base: Path) -> None:
    store = {"endpoint": "http://198.51.100.7:1", "accessKey": "a", "secretKey": "s"}
    catalog = {"rest": "http://198.51.100.7:1", "token": "t"}
    oauth2 = {"tokenEndpointUrl": "http://198.51.100.7/token", "clientId": "c", "clientSecret": {"env": "PATH"}}
    of_store = ["store.secretKey", "store.endpoint"]
    for settings, members in (
        ({"file": {"paths": ["s3://a/b"], "store": store}}, of_store),
        ({"delta": {"path": "s3://a/b", "store": store}}, of_store),
        (
            {"iceberg": {"catalog": catalog, "table": "a.b", "store": store}},
            ["catalog.token", "catalog.rest", *of_store],
        ),
        ({"sse": {"url": "https://a.example", "auth": {"oauth2": oauth2}}}, ["auth.oauth2.tokenEndpointUrl"]),
    ):
        (kind,) = settings
        notes = loaded(base, source=settings).notes
        assert {note.path for note in notes} == {f"spec.vertices[0].source.{kind}.{member}" for member in members}


def test_outputs(base: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def sink(path: str, **more: Any) -> LoadedPipeline:
        return loaded(base, sink={"file": {"path": path}, **more})

    retry = {"retryStrategy": {"onFailure": "fallback"}}
    assert found(sink("new/deep/out")) == []
    assert found(sink("sub")) == []
    assert found(sink("plain/out")) == [("[2].sink.file.path", "plain is not a directory")]
    assert found(sink("a", fallback={"file": {"path": "./b/../a"}}, **retry)) == [
        ("[2].sink.fallback.file.path", "another sink writes into a")
    ]
    monkeypatch.setattr(os, "access", lambda *_: False)
    assert found(sink("sub/new")) == [("[2].sink.file.path", "sub is not writable")]


_AVRO = {"encoding": "avro", "registry": {"url": "http://127.0.0.1:1"}}
_AWS = {"region": "eu-central-1", "service": "es"}


@pytest.mark.parametrize(
    ("parts", "needed"),
    [
        ({"sink": {"file": {"path": "out", "format": "parquet"}}}, {"[2].sink.file.format": "pyarrow"}),
        ({"sink": {"file": {"path": "s3://a/b"}}}, {"[2].sink.file.path": "obstore"}),
        ({"source": {"file": {"paths": ["in.csv"], "format": "parquet"}}}, {"[0].source.file.format": "pyarrow"}),
        (
            {"sink": {"http": {"url": "http://127.0.0.1:1", "auth": {"aws": _AWS}}}},
            {"[2].sink.http.auth.aws": "botocore"},
        ),
        (
            {"source": {"kafka": {"brokers": ["127.0.0.1:1"], "topic": "t"}, "keyFormat": _AVRO}},
            {"[0].source.kafka": "confluent_kafka", "[0].source.keyFormat": "fastavro"},
        ),
        (
            {
                "sink": {
                    "http": {"url": "http://127.0.0.1:1"},
                    "fallback": {"file": {"path": "out", "format": "avro"}},
                    "retryStrategy": {"onFailure": "fallback"},
                }
            },
            {"[2].sink.fallback.file.format": "fastavro"},
        ),
    ],
)
def test_what_a_source_or_sink_needs_is_named_at_its_reason(
    base: Path, monkeypatch: pytest.MonkeyPatch, parts: dict[str, Any], needed: dict[str, str]
) -> None:
    pipeline = loaded(base, **parts)
    assert found(pipeline) == []
    monkeypatch.setattr(needs, "find_spec", lambda _: None)
    assert dict(found(pipeline)) == {
        place: f"`{place.rpartition('.')[2]}` needs the package {module}, which is not installed"
        for place, module in needed.items()
    }
    assert len(found(pipeline)) == len(needed)


def test_reduces_need_a_package(base: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    window = {"window": {"fixed": {"length": "1m"}}}
    pipeline = loaded(base, udf={"python": "steps:Nope", "groupBy": window})
    assert found(pipeline) == [("[1].udf.python", "steps.py has no `Nope`")]
    monkeypatch.setattr(reduce, "find_spec", lambda _: None)
    assert found(loaded(base, udf={"command": ["./tool"], "groupBy": window})) == [
        ("[1].udf.groupBy", "windows are computed by Spark, but the package pyspark is not installed")
    ]


def test_names_at_the_top_of_a_module() -> None:
    text = """
import os.path, json as j
from a import b as c
try:
    from x import fast
except ImportError:
    fast = None
    def slow(): inner = 1
if True:
    p, (q, *r) = 1, (2, 3)
with open("f") as handle:
    pass
class K:
    member = 1
async def co(): ...
for i in []: ...
z: int = 3
"""
    expected = {"os", "j", "c", "fast", "slow", "p", "q", "r", "handle", "K", "co", "i", "z"}
    assert checks.top_level_names(ast.parse(text)) == expected
