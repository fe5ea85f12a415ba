"""The config and the secrets of a function, as the function reads them."""

from __future__ import annotations

import json
import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypedDict

import msgspec
import pydantic
import pytest

import millstream_udf as udf
from millstream_udf import settings
from millstream_udf.loading import LoadError
from millstream_udf.reducing import load
from millstream_udf.settings import Settings
from millstream_udf.testing import given, read_source, run, run_reduce


@dataclass
class Inner:
    region: str = "eu"


@dataclass
class Limits:
    threshold: float
    inner: Inner = field(default_factory=Inner)
    maybe: Inner | None = None


class Model(pydantic.BaseModel):
    threshold: float = pydantic.Field(gt=0)


class Struct(msgspec.Struct):
    threshold: float


class Dictionary(TypedDict):
    threshold: float


@pytest.fixture(autouse=True)
def process(monkeypatch: pytest.MonkeyPatch) -> None:
    """A process of its own, as far as settings go."""
    monkeypatch.setattr(settings, "_PROCESS", settings._Process())


def misfit(kind: type, config: object, *more: type) -> str:
    """What a process that reads its config with this type, and more, says at its start."""
    with settings.declared() as kinds:
        for one in (kind, *more):
            udf.config(one)
    with given():
        settings.hold(Settings(json.dumps(config)))
        return settings.refusal(kinds)


def test_a_typed_config_is_read_when_it_is_used_and_as_a_class_attribute() -> None:
    limits = udf.config(Limits)

    class Function:
        own = udf.config(Limits)

    with given(config={"threshold": 3, "inner": {"region": "us"}}):
        assert (limits.threshold, limits.inner.region) == (3.0, "us")
        assert isinstance(limits, Limits)
        assert limits == Limits(3.0, Inner("us"))
        assert repr(limits) == repr(Limits(3.0, Inner("us")))
        assert type(Function.own) is Limits
        assert Function().own is Function.own
        with pytest.raises(AttributeError, match="cannot be changed"):
            limits.threshold = 4.0
    with given(config={"threshold": 4}):
        assert (limits.threshold, Function().own.threshold) == (4.0, 4.0)


@pytest.mark.parametrize("kind", [Limits, Model, Struct])
def test_a_config_has_the_type_that_the_function_says(kind: type) -> None:
    with given(config={"threshold": 2.5}):
        assert udf.config(kind).threshold == 2.5
    assert "field `threshold` is missing" in misfit(kind, {})
    assert "field `threshold` is" in misfit(kind, {"threshold": "high"})
    assert misfit(kind, {"threshold": 1, "treshold": 2}).endswith(
        f"`config` does not fit {kind.__name__}: field `treshold` is not a member of it; did you mean `threshold`?"
    )


def test_a_config_may_be_a_mapping() -> None:
    found, typed = udf.config(), udf.config(Dictionary)
    with given(config={"threshold": 1, "b": [2]}):
        assert dict(found) == {"threshold": 1, "b": [2]}
        assert found.get("c", 3) == 3
        assert (typed["threshold"], len(typed), "threshold" in typed, list(typed)) == (1.0, 1, True, ["threshold"])
    with given():
        assert dict(found) == {}


def test_members_that_a_type_within_does_not_have_are_found() -> None:
    nested = {"threshold": 1, "inner": {"reglon": "us"}}
    assert "field `inner.reglon` is not a member of it; did you mean `region`?" in misfit(Limits, nested)
    assert "field `maybe.x` is not a member of it; it has region" in misfit(Limits, {"threshold": 1, "maybe": {"x": 1}})

    class Open(pydantic.BaseModel, extra="allow"):
        threshold: float

    assert misfit(Open, {"threshold": 1, "more": 2}) == ""
    assert misfit(dict, {"anything": 2}) == ""


def test_several_types_may_share_a_config() -> None:
    assert misfit(Struct, {"threshold": 1, "region": "us"}, Inner) == ""
    assert "does not fit Struct or Inner: field `regoin`" in misfit(Struct, {"threshold": 1, "regoin": "us"}, Inner)


def test_a_misfit_in_a_test_is_the_records_error() -> None:
    limits = udf.config(Limits)

    def process(value: bytes) -> str:
        return str(limits.threshold)

    assert run(process, [b"x"], config={"threshold": 2}).values == [b"2.0"]
    (outcome,) = run(process, [b"x"]).outcomes
    assert "ConfigError: `config` does not fit Limits: field `threshold` is missing" in outcome.reason


def test_secrets_are_texts_by_name_and_a_missing_one_says_where_it_belongs() -> None:
    with given(secrets={"key": "hunter2"}):
        assert udf.secret("key") == "hunter2"
        with pytest.raises(udf.SecretError) as caught:
            udf.secret("kye")
    assert "'kye': add it to `secrets` beside the function in the pipeline file, which has key" in str(caught.value)
    assert "hunter2" not in str(caught.value)


def test_secrets_leave_the_environment_as_soon_as_they_are_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(settings.CONFIG_VARIABLE, '{"a":1}')
    monkeypatch.setenv(settings.SECRETS_VARIABLE, '{"key":"hunter2"}')
    settings.take_environment()
    assert settings.SECRETS_VARIABLE not in os.environ
    assert (udf.secret("key"), dict(udf.config())) == ("hunter2", {"a": 1})
    settings.take("", {})  # the first message of a stream, which has none for a process with its own
    assert udf.secret("key") == "hunter2"


def test_a_process_that_millstream_did_not_start_waits_for_the_first_stream(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MILLSTREAM_UDF_SOCKET", "/s")
    limits = udf.config(Limits)
    with pytest.raises(udf.ConfigError, match="did not start this process, and hands it over with the first records"):
        _ = limits.threshold
    with pytest.raises(udf.SecretError, match="not known yet"):
        udf.secret("key")
    assert settings.refusal() == ""
    settings.take('{"threshold":1}', {"key": "a"})
    assert (limits.threshold, udf.secret("key")) == (1.0, "a")
    settings.take('{"threshold":2}', {})
    assert limits.threshold == 2.0
    settings.take("", {})
    assert settings.refusal() == "`config` does not fit Limits: field `threshold` is missing"


def test_every_kind_of_function_has_them_in_a_test() -> None:
    def total(keys: tuple[str, ...], records: list[udf.Record], window: udf.Window) -> str:
        return f"{udf.config()['a']} {udf.secret('key')}"

    class Numbers:
        async def read(self, context: udf.Context, records_max: int, timeout: float) -> udf.Batch:
            udf.metrics.counter("reads").add()
            return udf.Batch([udf.Record(udf.secret("key"))], position=b"1", ended=True)

    with given(config={"a": 1}, secrets={"key": "k"}) as counted:
        assert run_reduce(total, [b"x"]).values == [b"1 k"]
        assert read_source(udf.source(Numbers))[0].records[0].value == b"k"
        assert run(lambda value: str(udf.config()["a"]), [b"x"]).values == [b"1"]
    assert counted == {"reads": 1}


def test_each_task_that_loads_a_function_judges_its_config_alike(tmp_path: Path) -> None:
    (tmp_path / "shared_of_windows.py").write_text(
        "from dataclasses import dataclass\nimport millstream_udf as udf\n\n"
        "@dataclass\nclass Shared:\n    region: str = 'eu'\n\nshared = udf.config(Shared)\n"
    )
    (tmp_path / "windows.py").write_text(
        "from dataclasses import dataclass\nimport millstream_udf as udf\nfrom shared_of_windows import shared\n\n"
        "@dataclass\nclass Own:\n    limit: int = 1\n\nown = udf.config(Own)\n\n"
        "@udf.reduce\ndef total(group, records):\n    return b'x'\n"
    )
    known = len(settings._PROCESS.kinds)
    for _ in range(3):
        load("windows.py:total", str(tmp_path), config='{"limit": 5, "region": "us"}')
        with pytest.raises(LoadError, match="did you mean `limit`"):
            load("windows.py:total", str(tmp_path), config='{"limt": 5}')
    load("windows.py:total", str(tmp_path), config='{"limit": 6, "region": "us"}')
    assert len(settings._PROCESS.kinds) <= known + 5


@pytest.mark.parametrize("target", ["hours_and_days:", "hours_and_days.py:"])
def test_each_function_of_a_module_judges_its_config_alike(tmp_path: Path, target: str) -> None:
    (tmp_path / "hours_and_days.py").write_text(
        "from dataclasses import dataclass\nimport millstream_udf as udf\n\n"
        "@dataclass\nclass Own:\n    limit: int = 1\n\nown = udf.config(Own)\n\n"
        "@udf.reduce\ndef hours(group, records):\n    return b'x'\n\n"
        "@udf.reduce\ndef days(group, records):\n    return b'x'\n"
    )
    load(f"{target}hours", str(tmp_path), config='{"limit": 5}')
    with pytest.raises(LoadError, match="did you mean `limit`"):
        load(f"{target}days", str(tmp_path), config='{"limt": 5}')
