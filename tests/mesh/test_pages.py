"""Pages that show a run are followed to the letter: typed into a shell in an empty folder that holds the two wheels."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.support.sizes import sized
from tools.follow import REPOSITORY, TUTORIAL, Rules, blocks_of, empty_folder, follow

RecordProperty = Callable[[str, object], None]
STEPS = sorted(TUTORIAL.glob("[0-9]*.md"))
README = REPOSITORY / "README.md"
RULES = Rules.of(TUTORIAL / "index.md")


@pytest.mark.timeout(600)
def test_what_the_tutorial_and_the_readme_show_is_what_comes(record_property: RecordProperty) -> None:
    followed(record_property, None)


@pytest.mark.sweep
@pytest.mark.timeout(1200)
def test_the_same_with_a_later_python(record_property: RecordProperty) -> None:
    python = next(later_pythons(), None)
    if python is None:
        pytest.skip("there is no Python 3.12 or later on this machine")
    followed(record_property, python)


@pytest.mark.sweep
@pytest.mark.timeout(1200)
def test_the_first_block_of_the_readme_installs_from_a_clone(tmp_path: Path) -> None:
    if not (REPOSITORY / ".git").exists():
        pytest.skip("this is not a clone")
    found = subprocess.run(
        [sys.executable, "-m", "pip", "download", "-q", "--no-deps", "-d", str(tmp_path), "hatchling"], check=False
    )
    if found.returncode != 0:
        pytest.skip("PyPI cannot be reached")
    clone = tmp_path / "clone"
    subprocess.run(["git", "clone", "--quiet", str(REPOSITORY), str(clone)], check=True)
    commands = README.read_text(encoding="utf-8").partition("```sh\n")[2].partition("```")[0]
    assert "pip install" in commands
    environment = {"PATH": "/usr/local/bin:/usr/bin:/bin", "HOME": str(tmp_path), "LANG": "C.UTF-8"}
    environment["PATH"] = f"{Path(sys.base_prefix) / 'bin'}:{environment['PATH']}"
    done = subprocess.run(
        ["bash", "-e", "-c", f"{commands}\nmillstream --version\ngit status --porcelain"],
        cwd=clone,
        env=environment,
        capture_output=True,
        text=True,
        check=True,
    )
    # Nothing is left behind that git would show.
    assert done.stdout.splitlines()[-1].startswith("millstream ")


def followed(record_property: RecordProperty, python: Path | None) -> None:
    faults, seconds = [], 0.0
    with empty_folder(python) as (shell, folder):
        for block, command, wrong in follow([*STEPS[: sized(3, len(STEPS))], README], shell, folder, RULES):
            faults += [wrong] if wrong else []
            seconds += command.seconds if command else 0.0
            if command and command.typed == "millstream run first.yaml" and block.page.name.startswith("2"):
                record_property("seconds_to_first_result", round(seconds, 1))
    assert not faults, "\n\n".join(faults) + "\n\n`python tools/follow.py --update` writes what came into the pages"


def later_pythons() -> Iterator[Path]:
    """Interpreters of later versions, those on the path and those that pyenv keeps."""
    for version in ("3.14", "3.13", "3.12"):
        found = [Path(path) for path in [shutil.which(f"python{version}")] if path]
        pyenv = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv"))
        found += sorted(pyenv.glob(f"versions/{version}*/bin/python3"))
        for path in found:
            tried = subprocess.run([path, "-c", "import venv"], capture_output=True, check=False)
            if tried.returncode == 0:
                yield path


def test_every_step_is_followed() -> None:
    listed = [name for name in (TUTORIAL / "index.md").read_text().split("](") if name.partition(")")[0][0].isdigit()]
    assert [name.partition(")")[0] for name in listed] == [page.name for page in STEPS]
    assert len(STEPS) == 7
    for page in STEPS:
        assert any(block.commands for block in blocks_of(page)), page


def test_a_page_that_is_wrong_is_seen(tmp_path: Path) -> None:
    rules = Rules.of(TUTORIAL / "index.md")
    assert rules.are_alike(["a", "...", "took 3.0 s"], ["a", "b", "c", "took 12 ms", ""])
    assert rules.are_alike(["1 ... 3"], ["1 2 3"])
    for shown in (["a"], ["a", "..."], ["...", "b"], []):
        assert not rules.are_alike(shown, ["b", "a"]), shown
