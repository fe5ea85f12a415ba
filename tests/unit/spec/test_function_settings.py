"""`config` and `secrets` of a user's program: what they may be, and where no function would get them."""

from __future__ import annotations

import json
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from millstream.limits import FUNCTION_CONFIG_BYTES_MAX
from millstream.plan import resolved
from millstream.plan.diff import Effect, settings_changed
from millstream.spec.checks import local_problems
from millstream.spec.loading import LoadedPipeline, load_text
from millstream.spec.mounts import mounts_of
from millstream.spec.problems import SpecError
from millstream_worker.programs import settings_of

PROGRAM = {"python": "f.py:f"}
SECRETS = {"key": {"env": "KEY"}}
GROUP_BY = {"window": {"fixed": {"length": "1s"}}}
CONFIG = {"threshold": 3.5, "regions": ["eu", "us"], "nested": {"on": True, "off": None, "text": "${not} a variable"}}


def loaded(directory: Path, *udfs: dict[str, Any]) -> LoadedPipeline:
    """A pipeline with maps of these programs, in a row."""
    names = [f"m{number}" for number in range(len(udfs))]
    vertices = [
        {"name": "in", "source": {"generator": {"records": 1}}},
        *({"name": name, "udf": udf} for name, udf in zip(names, udfs, strict=True)),
        {"name": "out", "sink": {"blackhole": {}}},
    ]
    order = ["in", *names, "out"]
    edges = [{"from": a, "to": b} for a, b in pairwise(order)]
    head = {"apiVersion": "millstream.io/v1alpha1", "kind": "Pipeline", "metadata": {"name": "p"}}
    text = json.dumps({**head, "spec": {"vertices": vertices, "edges": edges}})
    return load_text(text.replace('"INFINITE"', ".inf"), directory / "p.yaml")


def problems_of(directory: Path, udf: dict[str, Any]) -> list[str]:
    with pytest.raises(SpecError) as caught:
        loaded(directory, udf)
    return [f"{one.code.id} {one.path}: {one.what}; {one.expected}" for one in caught.value.problems]


def test_a_function_gets_any_config_and_the_values_of_its_secrets(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KEY", "from the environment")
    (tmp_path / "password").write_text("from a file\n")
    config = {**CONFIG, "nested": {"on": True, "off": None}}
    secrets = {"key": {"env": "KEY"}, "password": {"file": "password"}, "token": {"env": "KEY", "prefix": "Bearer "}}
    whole = loaded(tmp_path, {**PROGRAM, "config": config, "secrets": secrets})
    text = resolved.dump(whole.plan, whole.base_dir)
    assert "from the environment" not in text
    again = resolved.load(text)
    program = again.graph.vertex("m0").programs[0].program
    settings = settings_of(again, "m0", "udf", program)
    assert json.loads(settings.config) == config
    assert settings.secrets == {
        "key": "from the environment",
        "password": "from a file",
        "token": "Bearer from the environment",
    }
    assert "from" not in repr(settings)


@pytest.mark.parametrize(
    ("udf", "says"),
    [
        ({**PROGRAM, "config": [1]}, ("udf.config: ", "mapping")),
        ({**PROGRAM, "config": {"text": "x" * FUNCTION_CONFIG_BYTES_MAX}}, ("udf.config: ", "at most 64Ki")),
        ({**PROGRAM, "config": {"n": "INFINITE"}}, ("udf.config: ", "neither .inf nor .nan")),
        ({**PROGRAM, "config": CONFIG}, ("udf.config.nested.text: ", "`${not}` is not expanded")),
        ({**PROGRAM, "secrets": {"a-b": {"env": "KEY"}}}, ("a-b", "not a name for a secret")),
        ({"builtin": {"name": "cat"}, "config": {"a": 1}}, ("udf.config: ", "no effect on `builtin`")),
        ({"builtin": {"name": "cat"}, "secrets": SECRETS}, ("udf.secrets: ", "no effect on `builtin`")),
        ({"sql": {"query": "SELECT 1"}, "groupBy": GROUP_BY, "config": {"a": 1}}, ("udf.config: ", "on `sql`")),
        ({**PROGRAM, "groupBy": GROUP_BY, "secrets": SECRETS}, ("udf.secrets: ", "inside Spark's", "`command`, which")),
        ({"address": "unix:/s", "groupBy": GROUP_BY, "secrets": SECRETS}, ("udf.secrets: ", "by Spark's tasks")),
        ({"address": "db.example.org:1", "secrets": SECRETS}, ("udf.secrets: ", "unencrypted", "`tls`")),
    ],
)
def test_settings_that_cannot_be_are_named(udf: dict[str, Any], says: tuple[str, ...], tmp_path: Path) -> None:
    (problem,) = problems_of(tmp_path, udf)
    for text in says:
        assert text in problem


def test_a_secret_in_the_file_is_refused_and_not_shown(tmp_path: Path) -> None:
    (problem,) = problems_of(tmp_path, {**PROGRAM, "secrets": {"key": "hunter2"}})
    assert "which a pipeline file may only refer to" in problem
    assert "hunter2" not in problem


@pytest.mark.parametrize(
    "udf",
    [
        {**PROGRAM, "groupBy": GROUP_BY, "config": {"a": 1}},
        {"command": ["f"], "groupBy": GROUP_BY, "config": {"a": 1}, "secrets": SECRETS},
        {"address": "unix:/s", "groupBy": GROUP_BY, "config": {"a": 1}},
        {"address": "unix:/s", "secrets": SECRETS},
        {"address": "127.0.0.1:1", "secrets": SECRETS},
        {"address": "db.example.org:1", "tls": {}, "secrets": SECRETS},
    ],
)
def test_settings_reach_every_function_that_may_have_them(udf: dict[str, Any], tmp_path: Path) -> None:
    loaded(tmp_path, udf)


def test_one_program_at_an_address_has_one_config(tmp_path: Path) -> None:
    first, other = {"address": "unix:/s", "config": {"a": 1}}, {"address": "unix:/s", "config": {"a": 2}}
    assert local_problems(loaded(tmp_path, first, first)) == []
    (problem,) = local_problems(loaded(tmp_path, first, other))
    assert problem.path == "spec.vertices[2].udf.address"
    assert "another vertex has other `config` for the program at unix:/s" in problem.what


def test_a_missing_secret_is_told_at_its_place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("KEY", raising=False)
    (problem,) = (
        one for one in local_problems(loaded(tmp_path, {**PROGRAM, "secrets": SECRETS})) if one.code.id == "MS-2511"
    )
    assert problem.path == "spec.vertices[1].udf.secrets.key"
    assert "the environment variable KEY is not set" in problem.what


def test_pods_mount_the_secrets_of_functions_as_those_of_connectors(tmp_path: Path) -> None:
    written = {**PROGRAM, "secrets": {"key": {"name": "bank", "key": "api"}}}
    (mounted,) = mounts_of(loaded(tmp_path, written).pipeline).items()
    assert mounted[0] == "m0"
    assert mounted[1]["volumes"][0]["secret"]["secretName"] == "bank"


def test_a_changed_config_needs_a_restart_and_no_more(tmp_path: Path) -> None:
    before = loaded(tmp_path, {**PROGRAM, "config": {"a": 1}}).pipeline
    now = loaded(tmp_path, {**PROGRAM, "config": {"a": 2}}).pipeline
    assert settings_changed(before, now) == [(Effect.RESTART, "`udf` of vertex m0 changed")]
