"""The manifest of invariants and the marks on tests say the same."""

from __future__ import annotations

import tomllib

import pytest

from tools import guarantees

INVARIANTS = [f"I{number}" for number in (*range(1, 11), 12, 15, 16)]


def test_the_manifest_states_every_invariant() -> None:
    manifest = tomllib.loads(guarantees.MANIFEST.read_text())
    assert list(manifest) == INVARIANTS
    for invariant, entry in manifest.items():
        assert set(entry) == {"sentence", "tests"}, invariant
        assert entry["sentence"].endswith("."), invariant
        assert len(entry["tests"]) == len(set(entry["tests"])), invariant


@pytest.mark.slow
def test_manifest_and_marks_agree() -> None:
    faults = guarantees.differences(guarantees.listed(), guarantees.marked())
    assert not faults, "\n".join(faults)


@pytest.mark.slow
def test_every_invariant_has_tests_that_each_change_passes() -> None:
    swept = guarantees.swept()
    assert swept
    for invariant, tests in guarantees.listed().items():
        assert tests - swept, invariant


def test_marks_are_read_from_functions_classes_and_modules() -> None:
    source = """
import pytest

pytestmark = [pytest.mark.guarantee("I9")]

@pytest.mark.guarantee("I1", "I2")
@pytest.mark.parametrize("n", [1])
async def test_one(n): ...

@pytest.mark.guarantee("I3")
class TestMany:
    def test_two(self): ...
    def help(self): ...
"""
    assert dict(guarantees.marks_of("tests/test_a.py", source)) == {
        "tests/test_a.py::test_one": {"I1", "I2", "I9"},
        "tests/test_a.py::TestMany::test_two": {"I3", "I9"},
    }


def test_what_only_one_side_names_is_a_fault() -> None:
    one, two = frozenset({"tests/a.py::test_a"}), frozenset({"tests/b.py::test_b"})
    assert guarantees.differences({"I1": one}, {"I1": one}) == []
    assert guarantees.differences({"I1": frozenset()}, {}) == []
    assert "is listed" in guarantees.differences({"I1": one}, {})[0]
    assert "is not listed" in guarantees.differences({"I1": frozenset()}, {"I1": two})[0]
    assert len(guarantees.differences({"I1": one}, {"I1": two})) == 2
    assert "no such invariant" in guarantees.differences({}, {"I11": one})[0]
