"""Code is found by function and statement, whatever else changes around it."""

from __future__ import annotations

import ast
import textwrap
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tools.planting import Change, Code, MisfitError

SOURCE = '''
import os

LIMITS = frozenset({"a", "b"})


def late_records(times, watermark):
    """How many are late."""
    late = 0
    for time in times:
        if time < watermark and time > 0:
            late += 1
            seen(time)
    return late


class Reader:
    size: int = 3

    def read(self, frames):
        first = len(frames)
        try:
            self.look(frames, first, at=first)
        except ValueError as error:
            raise KeyError(str(error)) from error
        finally:
            self.done()
        return first

    def close(self):
        def one(item):
            return item.close()

        return [one(item) for item in self.items]
'''


COUNTING = "late += 1\n            seen(time)"


def code_of(root: Path, **sources: str) -> Code:
    for name, source in sources.items():
        path = root / "product" / f"{name.replace('__', '/')}.py"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(textwrap.dedent(source))
    return Code(root, ["product"])


def planted(root: Path, source: str, *changes: Change) -> str:
    (result,) = code_of(root, a=source).planted(changes).values()
    return result


def same(source: str, other: str) -> bool:
    return ast.dump(ast.parse(source)) == ast.dump(ast.parse(other))


@pytest.mark.parametrize(
    ("change", "before", "after"),
    [
        # An expression.
        ({"place": "late_records", "old": "time < watermark", "new": "time <= watermark"}, "time < w", "time <= w"),
        ({"place": "LIMITS", "old": "{'a', 'b'}", "new": "{'a'}"}, '{"a", "b"}', '{"a"}'),
        ({"place": "Reader.size", "old": "3", "new": "4"}, "= 3", "= 4"),
        ({"place": "Reader.close.one", "old": "item.close()", "new": "item"}, "item.close()", "item"),
        # An operand, an argument by name, one by position.
        ({"place": "late_records", "old": "time > 0"}, " and time > 0", ""),
        ({"place": "Reader.read", "old": "at=first"}, ", at=first", ""),
        ({"place": "Reader.read", "old": "at=first", "new": "at=0"}, "at=first", "at=0"),
        ({"place": "Reader.read", "old": "self.look(..., ..., at=...)", "new": "self.look(..., at=...)"}, None, None),
        # Statements.
        ({"place": "late_records", "old": "seen(time)"}, "\n            seen(time)", ""),
        ({"place": "Reader.read", "old": "self.done()"}, "        finally:\n            self.done()\n", ""),
        ({"place": "Reader.close.one", "old": "return item.close()"}, "return item.close()", "pass"),
        ({"place": "late_records", "old": "late += 1\nseen(time)", "new": "late = 1"}, COUNTING, "late = 1"),
        ({"place": "late_records", "old": "if ...:\n    ...", "new": "..."}, None, None),
        ({"place": "late_records", "before": "late += 1", "new": "time += 1"}, "late += 1", "time += 1; late += 1"),
        ({"place": "late_records", "after": "late += 1", "new": "time += 1"}, "late += 1", "late += 1; time += 1"),
        ({"place": "late_records", "before": "late += 1", "old": "seen(time)"}, COUNTING, "seen(time); late += 1"),
        ({"place": "late_records", "before": "return late", "old": "seen(time)"}, None, None),
        (
            {
                "place": "Reader.read",
                "old": "try: ...\nexcept ValueError as error: ...\nfinally: ...",
                "new": "try: ...\nexcept OSError as error: ...\nfinally: ...",
            },
            "except ValueError",
            "except OSError",
        ),
        ({"place": "Reader.close", "old": "def close(self): ...", "new": "..."}, None, None),
    ],
)  # fmt: skip
def test_code_is_replaced_removed_inserted_and_moved(
    tmp_path: Path, change: dict[str, Any], before: str | None, after: str | None
) -> None:
    result = planted(tmp_path, SOURCE, Change(**change))
    if before is not None and after is not None:
        assert SOURCE.count(before) == 1
        assert same(result, SOURCE.replace(before, after))
    elif "look" in change["old"]:
        assert "self.look(frames, at=first)" in result
    elif "if" in change["old"]:
        assert "        late += 1\n        seen(time)\n    return" in result
    elif "def" in change["old"]:
        assert "    def one(item):\n        return item.close()\n    return [one" in result
    else:
        assert "            late += 1\n    seen(time)\n    return late" in result


DEFECT = Change("late_records", old="time < watermark", new="time <= watermark")


@pytest.mark.parametrize(
    "source",
    [
        pytest.param(SOURCE.replace("time < watermark and", "(\n  time  # when\n <watermark\n) and"), id="layout"),
        pytest.param(SOURCE.replace("late += 1", '"""Counted."""; late += 2'), id="statements around it"),
        pytest.param(SOURCE.replace("late = 0", "late = 0\n    wait()").replace("> 0", "> 1"), id="lines around it"),
        pytest.param(SOURCE.replace("time", "stamp_us"), id="local variable"),
        pytest.param(SOURCE.replace("watermark", "limit_us"), id="parameter"),
        pytest.param(SOURCE.replace("watermark", "limit_us").replace("time", "stamp_us"), id="both"),
        pytest.param("if True:\n" + textwrap.indent(SOURCE, "    "), id="indented"),
    ],
)  # fmt: skip
def test_other_changes_of_the_code_break_no_defect(tmp_path: Path, source: str) -> None:
    result = planted(tmp_path, source, DEFECT)
    name, limit = "stamp_us" if "stamp_us" in source else "time", "limit_us" if "limit_us" in source else "watermark"
    assert f"{name} <= {limit}" in result
    assert f"{name} < {limit}" not in result


def test_a_file_that_moves_breaks_no_defect(tmp_path: Path) -> None:
    other = "def late_records(times):\n    return 0\n"
    code = code_of(tmp_path, deep__down__b=SOURCE, c=other)
    assert list(code.planted([DEFECT])) == ["product/deep/down/b.py"]


def test_what_stands_for_code_is_inserted_as_it_is_there(tmp_path: Path) -> None:
    source = "def f(a, b):\n    if a:\n        first(b)\n        second(b)\n    return b\n"
    change = Change("f", old="if a:\n    ...", new="if not a:\n    ...\n    third(c)")
    with pytest.raises(MisfitError, match=r"product/a.py:1: c, third is unknown there"):
        planted(tmp_path, source, change)
    change = Change("f", old="if x:\n    ...", new="while x:\n    ...\n    print(x)")
    whole = "def f(a, b):\n    while a:\n        first(b)\n        second(b)\n        print(a)\n    return b\n"
    assert same(planted(tmp_path, source, change), whole)


def test_names_are_read_in_one_way(tmp_path: Path) -> None:
    source = "def f(a, b):\n    return a - a, a - b\n"
    assert "return (a - a, 0)" in planted(tmp_path, source, Change("f", old="x - y", new="0"))
    assert "return (0, a - b)" in planted(tmp_path, source, Change("f", old="x - x", new="0"))
    # A name that is still there is itself, and a name of the module is never renamed.
    assert "return (a - a, 0)" in planted(tmp_path, source, Change("f", old="a - y", new="0"))
    with pytest.raises(MisfitError, match="is not in"):
        planted(tmp_path, "def f(a):\n    return g(a)\ndef g(a): ...\n", Change("f", old="h(a)", new="0"))


@pytest.mark.parametrize(
    ("change", "faults"),
    [
        (Change("late", old="a()"), ["there is no `late`. Others with that code or that name: none"]),
        (Change("close", old="a()"), ["there is no `close`", "Reader.close (product/a.py:30)"]),
        (Change("early_records", old="seen(time)"), ["there is no `early_records`", "late_records (product/a.py:7)"]),
        (Change("late_records", old="late += 2"), ["`late += 2` is not in product/a.py:7", "`late += 1`"]),
        (Change("late_records", old="time"), ["is in product/a.py:7 4 times, not once", "product/a.py:11 `time`"]),
        (Change("late_records", module="b", old="time"), ["there is no `late_records` in a module `b`"]),
        (Change("late_records", old="x < y", new="0"), ["is in product/a.py:7 2 times"]),
        (Change("late_records", old="time < watermark", new="late; late"), ["cannot replace `time < watermark`"]),
        (Change("Reader.read", old="ValueError"), ["cannot be removed, only replaced"]),
        (Change("late_records", old="late += 1", new="..."), ["the new code has more `...` than the old code"]),
        (Change("late_records", old="late += 1", new="late += LIMIT"), ["LIMIT is unknown there"]),
    ],
)
def test_a_misfit_names_the_function_and_candidates(tmp_path: Path, change: Change, faults: list[str]) -> None:
    source = SOURCE.replace("time > 0", "0 < time") if "x < y" in change.old else SOURCE
    source = source.replace("0 < time", "late < time") if "x < y" in change.old else source
    with pytest.raises(MisfitError) as caught:
        planted(tmp_path, source, change)
    for fault in faults:
        assert fault in str(caught.value)


def test_a_module_tells_places_of_one_name_apart(tmp_path: Path) -> None:
    code = code_of(tmp_path, one__a=SOURCE, two__a=SOURCE)
    with pytest.raises(MisfitError, match=r"2 times.*product/one/a.py.*product/two/a.py"):
        code.planted([DEFECT])
    assert list(code.planted([replace(DEFECT, module="two")])) == ["product/two/a.py"]


def test_several_changes_are_found_before_one_is_made_and_leave_nothing_behind(tmp_path: Path) -> None:
    code = code_of(tmp_path, a=SOURCE)
    one, other = "late += 1", "seen(time)"
    swapped = [Change("late_records", old=one, new=other), Change("late_records", old=other, new=one)]
    for _ in range(2):
        (result,) = code.planted(swapped).values()
        assert "            seen(time)\n            late += 1\n" in result
    with pytest.raises(MisfitError, match="two changes concern `time < watermark`"):
        code.planted([Change("late_records", old="time < watermark and time > 0", new="1"), DEFECT])
    (result,) = code.planted([DEFECT]).values()
    assert same(result, SOURCE.replace("time < watermark", "time <= watermark"))
