"""A technology is found by its key."""

from __future__ import annotations

import sys
from importlib.metadata import EntryPoint
from pathlib import Path

import pytest

from millstream import codes
from millstream.buffers.registry import over, technology, technology_of
from millstream.compression import Compression
from millstream.spec.buffers import TECHNOLOGIES
from millstream.spec.checks import local_problems
from millstream.spec.loading import load
from millstream.spec.problems import SpecError
from millstream_runner.cli.main import main
from tests.support.errors import raises

PIPELINE = """\
apiVersion: millstream.io/v1alpha1
kind: Pipeline
metadata: {name: p}
spec:
  vertices:
    - {name: in, source: {generator: {rpu: 1, records: 1}}}
    - {name: out, sink: {blackhole: {}}}
  edges: [{from: in, to: out}]
"""


def written(tmp_path: Path, buffer: str = "") -> Path:
    path = tmp_path / "p.yaml"
    path.write_text(PIPELINE.replace("spec:\n", f"spec:\n  interStepBuffer: {buffer}\n") if buffer else PIPELINE)
    return path


@pytest.mark.parametrize(
    ("buffer", "key"),
    [
        ("", "jetstream"),
        ("{jetstream: {}}", "jetstream"),
        ("{redis: {}}", "redis"),
        ("{compression: {type: none}, redis: {}}", "redis"),
        ("{compression: {type: none}}", "jetstream"),
    ],
)
def test_the_file_says_which(tmp_path: Path, buffer: str, key: str) -> None:
    assert technology_of(load(written(tmp_path, buffer)).pipeline).key == key


@pytest.mark.parametrize(
    "buffer",
    [
        "{}",
        "{nothing: {}}",
        "{redis: {a: b}}",
        "{redis: {}, jetstream: {}}",
        "{compression: {}}",
        "{compression: {type: lz5}}",
        "{compression: {type: lz4, level: 3}}",
    ],
)
def test_one_that_is_not_known_is_a_fault_of_the_file(tmp_path: Path, buffer: str) -> None:
    with pytest.raises(SpecError, match="interStepBuffer"):
        load(written(tmp_path, buffer))


@pytest.mark.parametrize(
    ("buffer", "compression"),
    [
        ("", Compression.LZ4),
        ("{redis: {}}", Compression.LZ4),
        # As Numaflow has it.
        ("{compression: {type: ZSTD}}", Compression.ZSTD),
        ("{jetstream: {}, compression: {type: gzip}}", Compression.GZIP),
        ("{compression: {type: none}}", Compression.NONE),
    ],
)
def test_the_file_says_how_records_are_compressed(tmp_path: Path, buffer: str, compression: Compression) -> None:
    loaded = load(written(tmp_path, buffer))
    assert loaded.pipeline.spec.compression is compression
    assert over(loaded, "redis").graph.pipeline.spec.compression is compression


def test_a_compression_that_is_nearly_one_is_named(tmp_path: Path) -> None:
    with pytest.raises(SpecError, match=r"no compression `zst`.*did you mean zstd\?"):
        load(written(tmp_path, "{compression: {type: zst}}"))


@pytest.mark.parametrize(("compression", "told"), [("zstd", True), ("lz4", False)])
def test_a_package_that_is_missing_for_the_compression_is_named(
    tmp_path: Path, compression: str, told: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "zstandard", None)
    problems = local_problems(load(written(tmp_path, f"{{compression: {{type: {compression}}}}}")))
    assert ["millstream[zstd]" in str(problem) for problem in problems] == [True] * told


def test_another_one_may_take_its_place(tmp_path: Path) -> None:
    loaded = load(written(tmp_path))
    assert technology_of(over(loaded, "redis").graph.pipeline).key == "redis"
    with raises(codes.EXTENSION, match="there is no ledger technology 'nothing'"):
        over(loaded, "nothing")


def install(value: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A package registers `value` as `mine`."""
    entry = EntryPoint("mine", value, "millstream.buffers")
    monkeypatch.setattr(TECHNOLOGIES, "_installed", {"mine": {value: entry}}, raising=False)
    monkeypatch.setattr(TECHNOLOGIES, "_loaded", {})


@pytest.mark.parametrize(
    ("value", "why"),
    [
        ("no.such.module:BUFFERS", r"the buffer technology mine of Millstream cannot be loaded: ModuleNotFoundError"),
        ("json:dumps", r"the buffer technology mine of Millstream is not usable: it lacks a member of `Technology`"),
    ],
)
def test_one_of_a_package_that_cannot_be_used_is_named(
    tmp_path: Path, value: str, why: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    install(value, monkeypatch)
    with raises(codes.EXTENSION, match=why):
        technology("mine")
    if "cannot be loaded" in why:
        with pytest.raises(SpecError, match=why):
            load(written(tmp_path, "{mine: {}}"))


@pytest.fixture
def of_a_package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A pipeline with buffers of another package."""
    install("millstream.buffers.redis.technology:TECHNOLOGY", monkeypatch)
    return written(tmp_path, "{mine: {}}")


def test_settings_that_nothing_reads_are_refused(of_a_package: Path) -> None:
    assert technology_of(load(of_a_package).pipeline).key == "redis"
    of_a_package.write_text(of_a_package.read_text().replace("{mine: {}}", "{mine: {path: x}}"))
    with pytest.raises(SpecError, match="`mine` has no settings here"):
        load(of_a_package)


def test_chaos_is_refused_where_it_cannot_judge(of_a_package: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["chaos", str(of_a_package), "--kills", "1"]) == codes.OPTIONS_CONFLICT.exit_code
    assert "the verifier does not read its marks" in capsys.readouterr().err


def test_a_package_that_ours_needs_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(TECHNOLOGIES, "_loaded", {})
    monkeypatch.delitem(sys.modules, "millstream.buffers.redis.technology", raising=False)
    monkeypatch.setitem(sys.modules, "millstream.buffers.redis.connection", None)
    with raises(codes.EXTRA_NEEDED, match=r"pip install 'millstream\[redis\]'"):
        technology("redis")


@pytest.mark.parametrize(("key", "url"), [("jetstream", "nats://host:1"), ("redis", "redis://host:1")])
def test_no_url_with_a_password_is_taken(key: str, url: str) -> None:
    used = technology(key)
    assert used.load_access(None, url).place == "host:1"
    with raises(codes.BROKER_ADDRESS):
        used.load_access(None, url.replace("//", "//user:secret@"))
    with raises(codes.BROKER_ADDRESS, match="is not a URL of a broker"):
        used.load_access(None, "http://host:1")
