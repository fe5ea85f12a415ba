"""Every failure outside has a test for every kind of source and sink, or a reason why not: `tests/failures.toml`."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path
from typing import Any

from millstream.spec.connectors import SINKS, SOURCES

ROOT = Path(__file__).parents[2]
MANIFEST: dict[str, dict[str, dict[str, str]]] = tomllib.loads((ROOT / "tests" / "failures.toml").read_text())
ALONE = {"generator", "http source", "log", "blackhole", "udsource", "udsink"}
"""Kinds that reach no server by themselves."""
TABLES = {"postgres", "sql", "delta", "iceberg", "bigquery"}


def wanted() -> dict[tuple[str, str], set[str]]:
    """The failures of each kind."""
    found: dict[tuple[str, str], set[str]] = {}
    registries: tuple[tuple[str, Any], ...] = (("sink", SINKS), ("source", SOURCES))
    for end, registry in registries:
        for name in registry.names:
            if name in ALONE or f"{name} {end}" in ALONE:
                continue
            rows = {"address", "target", "credentials"}
            rows |= {"registry"} if registry.load(name).encoded else set()
            rows |= {"full"} if end == "sink" else set()
            rows |= {"column"} if end == "sink" and name in TABLES else set()
            rows |= {"fullBucket"} if (end, name) == ("sink", "file") else set()
            found[end, name] = rows
    return found


def test_each_kind_has_each_failure() -> None:
    listed = {(end, name): {*rows} for end, kinds in MANIFEST.items() for name, rows in kinds.items()}
    assert listed == wanted()


def test_the_tests_exist() -> None:
    named = {held for kinds in MANIFEST.values() for rows in kinds.values() for held in rows.values() if "::" in held}
    for test in named:
        file, name = test.split("::")
        assert re.search(rf"^(async )?def {name}\(", (ROOT / file).read_text(), re.MULTILINE), test
