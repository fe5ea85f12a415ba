"""Builds what is released, into `dist/`: both distributions as wheel and sdist, a bill of materials, and checksums.

    python tools/dist.py [DIRECTORY]

The bill of materials (CycloneDX, JSON) names every package of the locks that images and users install, what those hold
inside, and the modules of the Go SDK, with licences and, for packages, the checksums that the lock accepts. Nothing in
it depends on when it was made. `SHA256SUMS` is what a release signs.
"""

from __future__ import annotations

import hashlib
import json
import subprocess
import sys
import tomllib
import uuid
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from tools.components import REPOSITORY, SHIPPED_LOCKS, Component, Licences, pinned, shipped

DISTRIBUTIONS = (REPOSITORY / "services" / "udf_sdk", REPOSITORY)
SPEC_VERSION = "1.6"
SUMS = "SHA256SUMS"


def version_of(project: Path) -> tuple[str, str]:
    """Name and version of a distribution."""
    stated = tomllib.loads((project / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    return stated["name"], stated["version"]


def bill_of_materials() -> dict[str, Any]:
    """The CycloneDX document."""
    licences = Licences()
    name, version = version_of(REPOSITORY)
    ours = {
        "type": "application",
        "bom-ref": f"pkg:pypi/{name}@{version}",
        "name": name,
        "version": version,
        "purl": f"pkg:pypi/{name}@{version}",
        "licenses": [{"expression": "Apache-2.0"}],
    }
    locks = dict[str, list[str]]()
    for lock in SHIPPED_LOCKS:
        for entry in pinned(lock):
            locks.setdefault(f"{entry.name}@{entry.version}", []).append(lock.name)
    components = shipped()
    listed = [_described(component, licences, locks) for component in components]
    content = json.dumps([ours, listed], sort_keys=True)
    return {
        "bomFormat": "CycloneDX",
        "specVersion": SPEC_VERSION,
        "serialNumber": f"urn:uuid:{uuid.uuid5(uuid.NAMESPACE_OID, content)}",
        "version": 1,
        "metadata": {"component": ours},
        "components": listed,
        "dependencies": [
            {"ref": ours["bom-ref"], "dependsOn": [component.url for component in components]},
            *_dependencies(components),
        ],
    }


def _described(
    component: Component, licences: Licences, locks: dict[str, list[str]], within: str = ""
) -> dict[str, Any]:
    reference = f"{within}#{component.url}" if within else component.url
    described: dict[str, Any] = {
        "type": "library",
        "bom-ref": reference,
        "name": component.name,
        "version": component.version,
        "purl": component.url,
    }
    expression = licences.expression(component)
    if expression:
        described["licenses"] = [{"expression": expression}]
    if component.sha256:
        held = locks.get(f"{component.name}@{component.version}", [])
        described["properties"] = [{"name": "millstream:lock", "value": lock} for lock in held] + [
            {"name": "millstream:sha256-of-an-accepted-file", "value": one} for one in component.sha256
        ]
    if component.inside:
        described["components"] = [_described(one, licences, locks, component.url) for one in component.inside]
    return described


def _dependencies(components: Sequence[Component]) -> Iterator[dict[str, Any]]:
    for component in components:
        yield {
            "ref": component.url,
            "dependsOn": list(dict.fromkeys(f"{component.url}#{one.url}" for one in component.inside)),
        }


def build_distributions(directory: Path, *options: str) -> None:
    """Builds both distributions. `options`: more of uv's; `--wheel` leaves the sdists out."""
    uv = str(Path(sys.executable).parent / "uv")
    for project in DISTRIBUTIONS:
        command = [uv, "build", "--quiet", "--no-build-isolation", "--python", sys.executable, "--no-create-gitignore"]
        subprocess.run([*command, *options, "--out-dir", str(directory), str(project)], cwd=REPOSITORY, check=True)


def build(directory: Path) -> list[Path]:
    """Builds everything. The files, sorted by name."""
    directory.mkdir(parents=True, exist_ok=True)
    for old in directory.iterdir():
        old.unlink()
    build_distributions(directory)
    name, version = version_of(REPOSITORY)
    bill = directory / f"{name}-{version}.cdx.json"
    bill.write_text(json.dumps(bill_of_materials(), indent=1) + "\n", encoding="utf-8")
    made = sorted(directory.iterdir())
    lines = [f"{hashlib.sha256(path.read_bytes()).hexdigest()}  {path.name}\n" for path in made]
    (directory / SUMS).write_text("".join(lines), encoding="utf-8")
    return [*made, directory / SUMS]


if __name__ == "__main__":
    for made in build(Path(sys.argv[1]) if len(sys.argv) > 1 else REPOSITORY / "dist"):
        print(f"{made.stat().st_size:>9,}  {made}")
