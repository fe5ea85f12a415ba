"""Compares the output of a pipeline with the expected records, and describes the differences. Pure.

Above it: the command. Below it: the records of cases and envelopes.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from millstream.dead_letter import Envelope, time_text
from millstream.json_parser import parse_json
from millstream_runner.cases.case import ExpectedRecord

_SHOWN_MAX = 10
"""The most records of each kind that are shown of a sink."""
_TEXT_MAX = 300
"""The most characters of a value that are shown."""


def differences(expected: Sequence[ExpectedRecord], came: Sequence[Envelope], *, in_order: bool) -> list[str]:
    """Lines for people; none if all records are as expected. Each actual record matches at most one expectation."""
    pairs = _pairs_in_order(expected, came) if in_order else _pairs(expected, came)
    missing = [one for index, one in enumerate(expected) if index not in pairs]
    taken = set(pairs.values())
    surplus = [one for index, one in enumerate(came) if index not in taken]
    if not missing and not surplus:
        return []
    others = f", and {len(surplus)} {'others' if len(surplus) > 1 else 'other'}" if surplus else ""
    lines = [f"{len(pairs)} of {len(expected)} expected records came{others}"]
    near = _nearest(missing, surplus)
    for one in missing[:_SHOWN_MAX]:
        other = near.get(id(one))
        lines.append(f"  - line {one.line}: {_wanted(one)}")
        if other is not None:
            lines.append(f"  + {_shown(other)}")
            lines += [f"      {line}" for line in _mismatches(one, other)]
    close = {id(other) for other in near.values()}
    rest = [one for one in surplus if id(one) not in close]
    lines += [f"  + {_shown(one)}" for one in rest[:_SHOWN_MAX]]
    left = max(0, len(missing) - _SHOWN_MAX) + max(0, len(rest) - _SHOWN_MAX)
    return [*lines, f"  ... and {left} more"] if left else lines


def _pairs_in_order(expected: Sequence[ExpectedRecord], came: Sequence[Envelope]) -> dict[int, int]:
    """Pairs in order. Records that came after a missing one may still be the ones expected there."""
    pairs: dict[int, int] = {}
    begin = 0
    for index, one in enumerate(expected):
        found = next((at for at in range(begin, len(came)) if _fits(one, came[at])), None)
        if found is not None:
            pairs[index], begin = found, found + 1
    return pairs


def _pairs(expected: Sequence[ExpectedRecord], came: Sequence[Envelope]) -> dict[int, int]:
    """As many matches as possible at once, each expectation with the index of its record."""
    fitting = [[at for at, record in enumerate(came) if _fits(one, record)] for one in expected]
    owner: dict[int, int] = {}
    """By index of the record."""
    for index in range(len(expected)):
        _place(index, fitting, owner)
    return {index: at for at, index in owner.items()}


def _place(start: int, fitting: Sequence[Sequence[int]], owner: dict[int, int]) -> None:
    """Give an expectation a record; expectations that have one switch to another if that helps."""
    asked_by: dict[int, int] = {}
    """By index of the record: the expectation that would take it."""
    queue = [start]
    for index in queue:
        for at in fitting[index]:
            if at in asked_by:
                continue
            asked_by[at] = index
            if at not in owner:
                _move_on(start, at, asked_by, owner)
                return
            queue.append(owner[at])


def _move_on(start: int, free: int, asked_by: Mapping[int, int], owner: dict[int, int]) -> None:
    """From the free record back to the start, each expectation takes the record that it asked for and leaves its
    own."""
    has = {index: at for at, index in owner.items()}
    while True:
        index = asked_by[free]
        owner[free] = index
        if index == start:
            return
        free = has[index]


def _fits(one: ExpectedRecord, record: Envelope) -> bool:
    return next(_mismatches(one, record), None) is None


def _mismatches(one: ExpectedRecord, record: Envelope) -> Iterator[str]:
    """How a record differs from what was expected."""
    if one.raw is not None and one.raw != record.value:
        yield f"value: expected {_text(one.raw)}"
    if one.has_json or one.contains is not None:
        value = _json(record.value)
        if value is None and record.value.strip() != b"null":
            yield "value: it is not JSON"
        elif one.contains is not None:
            yield from _members(one.contains, value, whole=False)
        else:
            yield from _members(one.json, value, whole=True)
    if one.time_us is not None and one.time_us != record.event_time_us:
        yield f"time: expected {time_text(one.time_us)}, got {time_text(record.event_time_us)}"
    if one.keys is not None and one.keys != record.keys:
        yield f"keys: expected {list(one.keys)}, got {list(record.keys)}"
    for name, text in (one.headers or {}).items():
        if record.headers.get(name) != text.encode():
            given = record.headers.get(name)
            yield f"header {name}: expected {text!r}, got {_text(given) if given is not None else 'none'}"
    if one.reason is not None and one.reason not in record.reason:
        yield f"reason: expected {one.reason!r}, got {record.reason!r}"


def _members(wanted: Any, value: Any, *, whole: bool, path: str = "value") -> Iterator[str]:
    """Where two JSON values differ, member by member for objects. `whole`: additional members are a difference."""
    if isinstance(wanted, Mapping) and isinstance(value, Mapping):
        for name, part in wanted.items():
            if name in value:
                yield from _members(part, value[name], whole=whole, path=f"{path}.{name}")
            else:
                yield f"{path}.{name}: expected {_line(part)}, but it is missing"
        if whole:
            yield from (f"{path}.{name}: unexpected: {_line(value[name])}" for name in value if name not in wanted)
    elif wanted != value or isinstance(wanted, bool) != isinstance(value, bool):
        yield f"{path}: expected {_line(wanted)}, got {_line(value)}"


def _nearest(missing: Sequence[ExpectedRecord], surplus: Sequence[Envelope]) -> dict[int, Envelope]:
    """For each missing record, the most similar one of the others; each is shown once."""
    near: dict[int, Envelope] = {}
    left = list(surplus[: 5 * _SHOWN_MAX])
    for one in missing[:_SHOWN_MAX]:
        if left:
            found = min(range(len(left)), key=lambda at: len(list(_mismatches(one, left[at]))))
            near[id(one)] = left.pop(found)
    return near


def _wanted(one: ExpectedRecord) -> str:
    parts = (
        _line(one.json) if one.has_json else None,
        f"contains {_line(one.contains)}" if one.contains is not None else None,
        _text(one.raw) if one.raw is not None else None,
        f"keys {list(one.keys)}" if one.keys is not None else None,
        f"at {time_text(one.time_us)}" if one.time_us is not None else None,
        f"reason {one.reason!r}" if one.reason is not None else None,
    )
    return "  ".join(part for part in parts if part is not None)


def _shown(record: Envelope) -> str:
    keys = f"  keys {list(record.keys)}" if record.keys else ""
    reason = f"  reason {record.reason!r}" if record.reason else ""
    return f"{_text(record.value)}{keys}  at {time_text(record.event_time_us)}{reason}"


def _json(value: bytes) -> Any:
    try:
        return parse_json(value)
    except ValueError:
        return None


def _line(value: object) -> str:
    return _cut(json.dumps(value, ensure_ascii=False, default=str))


def _text(value: bytes) -> str:
    return _cut(value.decode(errors="backslashreplace"))


def _cut(text: str) -> str:
    return text if len(text) <= _TEXT_MAX else f"{text[:_TEXT_MAX]}... ({len(text):,} characters)"
