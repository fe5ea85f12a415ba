"""The planted defects fit the code and name tests that there are; some, other ones for other code, are caught.

`python tools/defects.py` plants them all.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tools import defects, guarantees

DEFECTS = defects.defects()
CAUGHT_HERE = 5
PATCH = """Breaks I1: something
Caught by: tests/unit/test_a.py::test_a
--- a/millstream/a.py
+++ b/millstream/a.py
@@ -1,2 +1,2 @@
 kept
-old
+new
"""


def test_there_are_enough_of_every_kind() -> None:
    assert len(DEFECTS) >= 25
    assert {invariant for defect in DEFECTS for invariant in defect.invariants} >= {"I1", "I2", "I3", "I4", "I5", "I6"}
    assert {invariant for defect in DEFECTS for invariant in defect.invariants} <= set(guarantees.listed())


@pytest.mark.parametrize("defect", DEFECTS, ids=lambda defect: defect.name)
def test_each_fits_the_code_and_names_a_test(defect: defects.Defect) -> None:
    for path in defect.changes:
        assert path.startswith(defects.PRODUCT), path
        source = (defects.REPOSITORY / path).read_text(encoding="utf-8")
        changed = defects.planted(defect, path, source)
        assert changed != source
        compile(changed, path, "exec")
    path, _, name = defect.test.partition("::")
    tests = [node_id for node_id, _ in guarantees.marks_of(path, (defects.REPOSITORY / path).read_text())]
    assert f"{path}::{name.partition('[')[0]}" in tests


@pytest.mark.process
@pytest.mark.timeout(900)
def test_tests_notice_them() -> None:
    command = [sys.executable, "tools/defects.py", "--json", "--sample", str(CAUGHT_HERE)]
    done = subprocess.run(command, cwd=defects.REPOSITORY, capture_output=True, text=True, check=False, timeout=280)
    assert done.returncode == 0, done.stdout + done.stderr
    assert [outcome["caught"] for outcome in json.loads(done.stdout)] == [True] * CAUGHT_HERE


def test_those_in_changed_files_come_first() -> None:
    path = next(iter(next(defect for defect in DEFECTS if not defect.test.startswith(defects.SLOW)).changes))
    touched = [one for one in DEFECTS if path in one.changes and not one.test.startswith(defects.SLOW)]
    assert {one.name for one in touched} <= {
        one.name for one in defects.sample(DEFECTS, len(touched), frozenset((path,)))
    }
    assert len(defects.sample(DEFECTS, 5)) == 5


def test_a_defect_stands_where_its_lines_stand_and_nowhere_else() -> None:
    defect = defects.parsed("a", PATCH)
    assert (defect.invariants, defect.breaks, defect.test) == (("I1",), "something", "tests/unit/test_a.py::test_a")
    assert defects.planted(defect, "millstream/a.py", "first\nkept\nold\nlast\n") == "first\nkept\nnew\nlast\n"
    for source in ("kept\n", "kept\nold\nkept\nold\n"):
        with pytest.raises(ValueError, match="times, not once"):
            defects.planted(defect, "millstream/a.py", source)


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ("", "first lines"),
        (PATCH.replace("Breaks I1: ", "Breaks: "), "first lines"),
        (PATCH.partition("@@")[0], "changes nothing"),
        (PATCH + "words\n", "does not belong"),
    ],
)
def test_what_is_no_defect_is_refused(text: str, fault: str) -> None:
    with pytest.raises(ValueError, match=fault):
        defects.parsed("a", text)


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
    assert defects.judged(defects.parsed("a", PATCH), failures, 1.0).caught == caught


def test_a_copy_is_put_right_again(tmp_path: Path) -> None:
    (tmp_path / "millstream").mkdir()
    path = tmp_path / "millstream" / "a.py"
    path.write_text("kept\nold\n")
    with defects.Copy(tmp_path).with_defect(defects.parsed("a", PATCH)):
        assert path.read_text() == "kept\nnew\n"
    assert path.read_text() == "kept\nold\n"
