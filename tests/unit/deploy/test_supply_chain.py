"""What is shipped may be shipped, is what the locks say, and is listed."""

from __future__ import annotations

import hashlib
import importlib.metadata
import json
import re
import tarfile
import zipfile
from base64 import urlsafe_b64encode
from contextlib import suppress
from pathlib import Path

import pytest

from tools import components, dist
from tools.components import REPOSITORY, SHIPPED_LOCKS, Component, Licences, broker_program, go_build, pinned

BROKER_SUMS = REPOSITORY / "requirements" / "nats-server.sum"
BROKER_MODULE = "github.com/nats-io/nats-server/v2"


@pytest.fixture(scope="module")
def everything() -> list[Component]:
    return list(components.everything())


@pytest.mark.slow
def test_everything_that_is_shipped_has_a_licence_that_is_allowed(everything: list[Component]) -> None:
    licences = Licences()
    found = {component: licences.expression(component) for component in everything}
    unknown = [f"{component.url}: {component.licence!r}" for component, expression in found.items() if not expression]
    assert not unknown, "add what they are under to requirements/licences.toml, from their own files"
    refused = {component.url: one for component, one in found.items() if one and not licences.allows(one)}
    assert not refused


@pytest.mark.slow
def test_what_is_inside_of_packages_is_looked_at(everything: list[Component]) -> None:
    names = {component.name for component in everything}
    assert {"spark-core_2.13", "openjdk", BROKER_MODULE, "google.golang.org/grpc", "pyarrow"} <= names


@pytest.mark.parametrize(
    ("expression", "allowed"),
    [
        ("MIT", True),
        ("AGPL-3.0-only", False),
        ("Apache-2.0 AND AGPL-3.0-only", False),
        ("AGPL-3.0-only OR MIT", True),
        ("GPL-2.0-only", False),
        ("GPL-2.0-only WITH Classpath-exception-2.0", True),
    ],
)
def test_each_part_of_one_alternative_has_to_be_allowed(expression: str, allowed: bool) -> None:
    assert Licences().allows(expression) is allowed


@pytest.mark.slow
def test_the_list_of_licences_has_nothing_to_spare(everything: list[Component]) -> None:
    licences = Licences()
    stated = {part for component in everything for part in component.licence.split(" OR ")}
    assert set(licences.words) <= stated
    for kind, silent in licences.silent.items():
        names = [component.name for component in everything if component.kind == kind]
        for entry in silent:
            begin = entry.removesuffix("*")
            assert any(name == entry or (begin != entry and name.startswith(begin)) for name in names), entry


@pytest.mark.slow
def test_the_bill_of_materials_lists_each_once_and_is_the_same_each_time() -> None:
    bill = dist.bill_of_materials()
    assert json.dumps(bill) == json.dumps(dist.bill_of_materials())
    assert str(REPOSITORY) not in json.dumps(bill)
    assert (bill["bomFormat"], bill["specVersion"]) == ("CycloneDX", "1.6")
    listed = [*bill["components"], *(one for outer in bill["components"] for one in outer.get("components", ()))]
    references = [one["bom-ref"] for one in listed]
    assert len(references) == len(set(references))
    assert all(one["licenses"][0]["expression"] for one in listed)
    named = {reference for entry in bill["dependencies"] for reference in entry["dependsOn"]}
    assert named == set(references)
    by_name = {(one["name"], one["version"]): one for one in bill["components"]}
    for lock in SHIPPED_LOCKS:
        for entry in pinned(lock):
            # A lock holds what other versions of Python need, too.
            with suppress(importlib.metadata.PackageNotFoundError):
                if importlib.metadata.version(entry.name) != entry.version:
                    continue
                properties = by_name[entry.name, entry.version]["properties"]
                assert {"name": "millstream:lock", "value": lock.name} in properties
                assert {one["value"] for one in properties if "sha256" in one["name"]} == set(entry.sha256)


@pytest.mark.sweep
@pytest.mark.process
def test_a_release_is_two_distributions_a_bill_and_checksums(tmp_path: Path) -> None:
    made = {path.name: path for path in dist.build(tmp_path / "dist")}
    _, version = dist.version_of(REPOSITORY)
    # That of the SDK is for this machine, where there is a C compiler.
    (sdk,) = (name for name in made if name.startswith("millstream_udf-") and name.endswith(".whl"))
    assert re.fullmatch(rf"millstream_udf-{version}-(py3-none-any|cp311-abi3-\w+)\.whl", sdk)
    assert set(made) == {
        *(f"millstream{part}-{version}.tar.gz" for part in ("", "_udf")),
        *(f"millstream-{version}-py3-none-any.whl", sdk),
        f"millstream-{version}.cdx.json",
        dist.SUMS,
    }  # fmt: skip
    lines = [line.split() for line in made[dist.SUMS].read_text().splitlines()]
    assert {name: digest for digest, name in lines} == {
        name: hashlib.sha256(path.read_bytes()).hexdigest() for name, path in made.items() if name != dist.SUMS
    }
    for name, path in made.items():
        if name.endswith(".whl"):
            with zipfile.ZipFile(path) as wheel:
                assert any(re.search(r"licenses/LICENSE$", one) for one in wheel.namelist()), name
        elif name.endswith(".tar.gz"):
            with tarfile.open(path) as source:
                assert any(one.endswith("/LICENSE") for one in source.getnames()), name


def test_the_broker_is_the_file_of_the_locked_wheel() -> None:
    (version,) = {entry.version for lock in SHIPPED_LOCKS for entry in pinned(lock) if entry.name == components.BROKER}
    distribution = importlib.metadata.distribution(components.BROKER)
    assert distribution.version == version
    (recorded,) = [file.hash for file in distribution.files or () if file.name == "nats-server"]
    assert recorded is not None
    digest = hashlib.sha256(broker_program().read_bytes()).digest()
    assert recorded.value == urlsafe_b64encode(digest).rstrip(b"=").decode()


def test_the_broker_was_built_of_the_projects_release_and_of_the_modules_that_it_names() -> None:
    sums = dict(line.rsplit(" ", 1) for line in BROKER_SUMS.read_text().splitlines())
    build = go_build(broker_program())
    assert build.path == BROKER_MODULE
    version = importlib.metadata.version(components.BROKER)
    assert build.modules[BROKER_MODULE] == f"v{version}"
    assert f"{BROKER_MODULE} v{version}" in sums, "requirements/nats-server.sum is of another version"
    assert {f"{name} {build.modules[name]}": checksum for name, checksum in build.sums.items()} == {
        name: checksum for name, checksum in sums.items() if not name.startswith(f"{BROKER_MODULE} ")
    }
    assert build.settings["vcs.modified"] == "false"
    assert (build.settings["-trimpath"], build.settings["CGO_ENABLED"]) == ("true", "0")
