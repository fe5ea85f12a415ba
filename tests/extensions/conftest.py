"""The package of toys: installed for what runs pipelines, and importable for suites that run in this process."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

TOYS = Path(__file__).parent / "toys"

# Without the metadata of an installed package: here nothing is found by entry points.
sys.path.append(str(TOYS))


@pytest.fixture(scope="session")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where the package is installed."""
    place = tmp_path_factory.mktemp("site")
    install = ["install", "--quiet", "--no-index", "--no-deps", "--no-build-isolation", "--target", str(place)]
    subprocess.run([sys.executable, "-m", "pip", *install, str(TOYS)], check=True, timeout=100)
    return place


@pytest.fixture
def installed(site: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The package is installed for the processes that the test starts."""
    monkeypatch.setenv("PYTHONPATH", str(site))
