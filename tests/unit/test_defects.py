"""The planted defects fit the code and name tests that exist; some, other ones for other code, are caught.

`python tools/defects.py` plants them all.
"""

from __future__ import annotations

import json
import subprocess
import sys
from functools import lru_cache
from pathlib import Path
from typing import Any

import pytest

from tools import defects, guarantees
from tools.planting import Code

DEFECTS = defects.defects()
CODE = Code(defects.REPOSITORY, defects.PRODUCT)
CAUGHT_HERE = 2
ENTRY = {"invariants": ["I1"], "breaks": "something", "test": "tests/unit/test_a.py::test_a", "in": "a", "old": "b()"}


def test_there_are_enough_of_every_kind() -> None:
    assert {path.suffix for path in defects.FOLDER.iterdir()} == {".toml"}, "`tools/defects.py` shows the format"
    assert len(DEFECTS) >= 156
    assert {invariant for defect in DEFECTS for invariant in defect.invariants} >= {"I1", "I2", "I3", "I4", "I5", "I6"}
    assert {invariant for defect in DEFECTS for invariant in defect.invariants} <= set(guarantees.listed())


@pytest.mark.slow
@pytest.mark.parametrize("defect", DEFECTS, ids=lambda defect: defect.name)
def test_each_fits_the_code_and_names_a_test(defect: defects.Defect) -> None:
    for path, changed in CODE.planted(defect.changes).items():
        compile(changed, path, "exec")
    path, _, name = defect.test.partition("::")
    assert f"{path}::{name.partition('[')[0]}" in _tests_of(path)


@pytest.mark.slow
def test_each_change_runs_the_tests_that_notice_them() -> None:
    swept = guarantees.swept()
    assert not [defect.name for defect in DEFECTS if defect.test.partition("[")[0] in swept]


@lru_cache
def _tests_of(path: str) -> frozenset[str]:
    return frozenset(name for name, _ in guarantees.marks_of(path, (defects.REPOSITORY / path).read_text()))


@pytest.mark.process
@pytest.mark.timeout(1800)
def test_tests_notice_them() -> None:
    command = [sys.executable, "tools/defects.py", "--json", "--sample", str(CAUGHT_HERE)]
    # The command has limits of its own, which say more than one of this test would.
    done = subprocess.run(command, cwd=defects.REPOSITORY, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert [outcome["caught"] for outcome in json.loads(done.stdout)] == [True] * CAUGHT_HERE


@pytest.mark.slow
def test_a_sample_has_those_in_changed_files_first_and_no_slow_tests() -> None:
    fast = [defect for defect in DEFECTS if defects.is_fast(defect.test)]
    path = next(iter(CODE.paths(fast[0].changes)))
    touched = {defect.name for defect in fast if path in CODE.paths(defect.changes)}
    chosen = defects.sample(DEFECTS, len(touched), CODE, frozenset({path}))
    assert {defect.name for defect in chosen} == touched
    assert len(defects.sample(DEFECTS, 5, CODE)) == 5
    assert not defects.is_fast(
        "tests/simulation/test_simulation.py::test_whatever_happens_every_invariant_holds[fixed]"
    )
    assert not defects.is_fast("tests/unit/test_defects.py::test_tests_notice_them")
    assert defects.is_fast("tests/unit/test_defects.py::test_a_copy_is_put_right_again")


def test_a_defect_has_one_change_or_several_in_the_same_place_or_others() -> None:
    defect = defects.parsed("x", ENTRY)
    assert (defect.invariants, defect.breaks, defect.test) == (("I1",), "something", "tests/unit/test_a.py::test_a")
    assert [(change.place, change.old, change.new) for change in defect.changes] == [("a", "b()", "")]
    several = {**ENTRY, "changes": [{"new": "c()"}, {"in": "d", "module": "e"}]}
    assert [
        (change.place, change.module, change.old, change.new) for change in defects.parsed("x", several).changes
    ] == [
        ("a", "", "b()", "c()"),
        ("d", "e", "b()", ""),
    ]


@pytest.mark.parametrize(
    ("changed", "fault"),
    [
        ({"test": None}, "missing or unknown"),
        ({"in": None}, "missing or unknown"),
        ({"function": "a"}, "missing or unknown"),
        ({"old": None}, "it needs `old`"),
        ({"old": "", "new": "c()"}, "it needs `old`"),
        ({"old": "# a comment"}, "is empty"),
        ({"old": "b("}, "is not Python"),
        ({"before": "c()", "after": "d()"}, "it needs `old`"),
        ({"before": "c()", "new": "d()"}, "either replaced"),
    ],
)
def test_what_is_no_defect_is_refused(changed: dict[str, Any], fault: str) -> None:
    entry = {key: value for key, value in {**ENTRY, **changed}.items() if value is not None}
    with pytest.raises(ValueError, match=fault):
        defects.parsed("x", entry)


@pytest.mark.parametrize(
    ("failures", "caught"),
    [
        ({}, False),
        ({"tests/unit/test_a.py::test_b": "AssertionError"}, False),
        ({"tests/unit/test_a.py::test_a": "NameError: name 'old' is not defined"}, False),
        ({"tests/unit/test_a.py::test_a": "assert 1 == 2"}, True),
    ],
)
def test_only_a_failure_of_its_test_counts(failures: dict[str, str], caught: bool) -> None:
    assert defects.judged(defects.parsed("x", ENTRY), failures, 1.0).caught == caught


def test_a_copy_is_put_right_again(tmp_path: Path) -> None:
    (tmp_path / "millstream").mkdir()
    path, source = tmp_path / "millstream" / "a.py", "def a():  # as it was\n    b()\n\n\nb = a\n"
    path.write_text(source)
    with defects.Copy(tmp_path).with_defect(defects.parsed("x", ENTRY)):
        assert path.read_text() == "def a():\n    pass\nb = a\n"
    assert path.read_text() == source
