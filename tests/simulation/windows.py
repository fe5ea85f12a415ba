"""What windows must hold, by the definition of each kind, from the records a lane was given and the results it wrote.

A record may be late only if the lane that wrote it had promised so: no watermark that any lane saw can be higher.
Shares no code with the windows it judges.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from itertools import pairwise
from typing import TYPE_CHECKING

from millstream.spec.models import GroupBy
from tests.simulation.history import Violation
from tests.simulation.jobs import SEPARATOR, name_of

if TYPE_CHECKING:
    from tests.simulation.model import Row

Key = tuple[bytes, ...]


@dataclass(frozen=True, slots=True)
class Result:
    """A result as it was written."""

    start_us: int
    end_us: int
    early: int
    key: Key
    members: tuple[bytes, ...]


def judge(
    group_by: GroupBy,
    where: str,
    inputs: Sequence[Row],
    written: Sequence[Row],
    late_rows: Sequence[Row],
    *,
    lost: int | None,
    exact: bool,
) -> None:
    """Raises `Violation`. `written`: in the order of each buffer. `lost`: late records that were dropped; None where
    they go to `late_rows`. `exact`: nothing can be late."""
    results = [_result_of(where, row) for row in written]
    _check_unique(where, results)
    finals = [result for result in results if not result.early]
    _check_early(where, results)
    _check_order(where, results)
    if group_by.early is not None and group_by.early.count is not None:
        _check_early_counts(where, results, group_by.early.count)
    inputs = [replace(row, value=name_of(row.value)) for row in inputs]
    by_value = {row.value: row for row in inputs}
    holders: dict[bytes, list[Result]] = defaultdict(list)
    for result in finals:
        for value in result.members:
            if value not in by_value:
                raise Violation(f"I3: {where}: {result} holds {value!r}, which was never given")
            if by_value[value].keys != result.key:
                raise Violation(f"I3: {where}: {result} holds {value!r} of another key")
            holders[value].append(result)
        if len(set(result.members)) != len(result.members):
            raise Violation(f"I1: {where}: {result} holds a record twice")
    late = Counter(name_of(row.value) for row in late_rows)
    if twice := [value for value, count in late.items() if count > 1 or value in holders or value not in by_value]:
        raise Violation(f"I1: {where}: late records that are in a result, or late twice: {twice}")
    missing = [row for row in inputs if row.value not in holders and row.value not in late]
    if len(missing) != (lost or 0):
        raise Violation(f"I1: {where}: {[row.value for row in missing]} are nowhere, {lost or 0} are counted as late")
    gone = [*missing, *(by_value[value] for value in late)]
    if exact and gone:
        raise Violation(f"I5: {where}: late, and nothing can be: {[row.value for row in gone]}")
    lateness_us = round(group_by.allowed_lateness_s * 1e6)
    window = group_by.window
    if window.fixed is not None:
        length_us = round(window.fixed.length_s * 1e6)
        _check_panes(where, inputs, holders, length_us, length_us, lateness_us)
    elif window.sliding is not None:
        length_us, slide_us = round(window.sliding.length_s * 1e6), round(window.sliding.slide_s * 1e6)
        _check_panes(where, inputs, holders, length_us, slide_us, lateness_us)
    elif window.session is not None:
        timeout_us = round(window.session.timeout_s * 1e6)
        _check_sessions(where, by_value, holders, finals, timeout_us, exact=exact)
        _check_late(where, inputs, holders, gone, timeout_us, lateness_us)
    else:
        assert window.global_ is not None
        assert window.global_.trigger is not None
        _check_counts(where, inputs, holders, finals, window.global_.trigger.count or 0)


def _result_of(where: str, row: Row) -> Result:
    early = int(row.headers.get("window-early", b"0"))
    start_us, end_us = _time_us(row.headers["window-start"]), _time_us(row.headers["window-end"])
    if row.time_us != end_us - 1:
        raise Violation(f"I3: {where}: a result of {end_us} has the time {row.time_us}")
    return Result(start_us, end_us, early, row.keys, tuple(row.value.split(SEPARATOR)))


def _time_us(text: bytes) -> int:
    try:
        return int(text)
    except ValueError:
        moment = datetime.fromisoformat(text.decode())
        # A float has not enough digits for the microseconds of our time.
        return round(moment.replace(microsecond=0).timestamp()) * 1_000_000 + moment.microsecond


def _check_unique(where: str, results: Iterable[Result]) -> None:
    """One result of each (key, window) and number; of global windows several have the same bounds."""
    seen: set[Result] = set()
    bounds: dict[tuple[int, int, int, Key], Result] = {}
    for result in results:
        if result in seen:
            raise Violation(f"I3: {where}: {result} was written twice")
        seen.add(result)
        place = (result.start_us, result.end_us, result.early, result.key)
        if place in bounds:
            raise Violation(f"I3: {where}: two results of one window: {bounds[place]} and {result}")
        bounds[place] = result


def _check_early(where: str, results: Sequence[Result]) -> None:
    """Each holds what the one before held, and the final one holds all."""
    windows: dict[tuple[int, int, Key], list[Result]] = defaultdict(list)
    for result in results:
        windows[result.start_us, result.end_us, result.key].append(result)
    for place, members in windows.items():
        members.sort(key=lambda result: result.early or 1 << 60)
        if members[-1].early:
            raise Violation(f"I3: {where}: {place} has early results and no final one")
        for before, after in pairwise(members):
            if not set(before.members) <= set(after.members):
                raise Violation(f"I3: {where}: {after} does not hold all of {before}")


def _check_order(where: str, results: Sequence[Result]) -> None:
    """Of each key: final results by end, and the results of one window by number, the final one last."""
    last_ends: dict[Key, int] = {}
    last_numbers: dict[tuple[int, int, Key], int] = {}
    for result in results:
        number = result.early or 1 << 60
        place = (result.start_us, result.end_us, result.key)
        if number <= last_numbers.get(place, 0):
            raise Violation(f"I4: {where}: {result} follows result {last_numbers[place]} of its window")
        last_numbers[place] = number
        if not result.early:
            if result.end_us < last_ends.get(result.key, result.end_us):
                raise Violation(f"I4: {where}: {result} follows one of its key that ends at {last_ends[result.key]}")
            last_ends[result.key] = result.end_us


def _check_early_counts(where: str, results: Sequence[Result], count: int) -> None:
    """Each early result of a window is over so many records more than the one before, over all keys."""
    windows: dict[tuple[int, int], Counter[int]] = defaultdict(Counter)
    for result in results:
        if result.early:
            windows[result.start_us, result.end_us][result.early] += len(result.members)
    for place, records in windows.items():
        numbers = range(1, max(records) + 1)
        before = 0
        for number in numbers:
            if records[number] < before + count:
                raise Violation(
                    f"I3: {where}: {place} has {records[number]} records at its early result {number}, "
                    f"and had {before} at the one before: fewer than {count} more"
                )
            before = records[number]


def _check_panes(
    where: str,
    inputs: Sequence[Row],
    holders: Mapping[bytes, Sequence[Result]],
    length_us: int,
    slide_us: int,
    lateness_us: int,
) -> None:
    for row in inputs:
        last = row.time_us // slide_us
        starts = [n * slide_us for n in range(last, last - length_us // slide_us - 1, -1)]
        wanted = {(start, start + length_us) for start in starts if start <= row.time_us < start + length_us}
        found = {(result.start_us, result.end_us) for result in holders.get(row.value, ())}
        if not found <= wanted:
            raise Violation(f"I3: {where}: {row.value!r} of {row.time_us} is in {found - wanted}")
        for _, end_us in wanted - found:
            if row.promised_us < end_us + lateness_us:
                raise Violation(
                    f"I5: {where}: {row.value!r} of {row.time_us} is not in the window that ends at {end_us}, though "
                    f"no lane had promised more than {row.promised_us}"
                )


def _check_late(
    where: str,
    inputs: Sequence[Row],
    holders: Mapping[bytes, Sequence[Result]],
    gone: Sequence[Row],
    timeout_us: int,
    lateness_us: int,
) -> None:
    """A late record comes after the end of the session it would have been in, as far as what came before it in the same
    buffer tells: what is in one result was in one open session, or in several that the record would have joined."""
    for row in gone:
        before: dict[Result, list[int]] = defaultdict(list)
        for other in inputs:
            if other.buffer == row.buffer and (other.sequence, other.index) < (row.sequence, row.index):
                for result in holders.get(other.value, ()):
                    if result.key == row.keys:
                        before[result].append(other.time_us)
        for times in ([], *before.values()):
            end_us = _end_with(row.time_us, times, timeout_us)
            if row.promised_us < end_us + lateness_us:
                raise Violation(
                    f"I5: {where}: {row.value!r} of {row.time_us} is late, though its session ended at {end_us}, and "
                    f"no lane had promised more than {row.promised_us}"
                )


def _end_with(time_us: int, times: Sequence[int], timeout_us: int) -> int:
    """End of the session that holds `time_us` among these."""
    last_us = time_us
    for other_us in sorted(times):
        if last_us <= other_us < last_us + timeout_us:
            last_us = other_us
    return last_us + timeout_us


def _check_sessions(
    where: str,
    by_value: Mapping[bytes, Row],
    holders: Mapping[bytes, Sequence[Result]],
    finals: Sequence[Result],
    timeout_us: int,
    *,
    exact: bool,
) -> None:
    for value, results in holders.items():
        if len(results) > 1:
            raise Violation(f"I1: {where}: {value!r} is in {results}")
    for result in finals:
        times = sorted(by_value[value].time_us for value in result.members)
        if (result.start_us, result.end_us) != (times[0], times[-1] + timeout_us):
            raise Violation(f"I3: {where}: {result} has the wrong bounds")
        if any(after - before >= timeout_us for before, after in pairwise(times)):
            raise Violation(f"I3: {where}: {result} is more than one session")
    if exact:
        bounds = sorted((result.key, result.start_us, result.end_us) for result in finals)
        for (key, _, end_us), (other, start_us, _) in pairwise(bounds):
            if key == other and start_us < end_us:
                raise Violation(f"I3: {where}: two sessions of {key} that overlap, at {start_us}")


def _check_counts(
    where: str, inputs: Sequence[Row], holders: Mapping[bytes, Sequence[Result]], finals: Sequence[Result], count: int
) -> None:
    """`count`: 0 where a period triggers."""
    for value, results in holders.items():
        if len(results) > 1:
            raise Violation(f"I1: {where}: {value!r} is in {results}")
    if not count:
        return
    given = Counter(row.keys for row in inputs)
    sizes: dict[Key, list[int]] = defaultdict(list)
    for result in finals:
        sizes[result.key].append(len(result.members))
    for key, total in given.items():
        wanted = [count] * (total // count) + [total % count] * (total % count > 0)
        if Counter(sizes[key]) != Counter(wanted):
            raise Violation(f"I3: {where}: {total} records of {key} in results of {sizes[key]}")
