"""Checks the sinks of any pipeline against their guarantees. Pure, except that it reads files.

- A file sink promises that each record takes effect once: its files are consecutive, without gap or overlap, and
  contain as many records as the account says were written.
- Sinks with the same input must have the same records, however often a function was called.
- If a member of the rows identifies the record (`--id`), its values must be unique.
- A sink that promises less, or writes elsewhere, is not checked further, which is reported.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from itertools import pairwise
from pathlib import Path

from millstream_runner.chaos.oracle.account import Marks, accounts
from millstream_runner.chaos.oracle.checks import Check, Result, checked
from millstream_runner.chaos.oracle.pipeline import OraclePipeline
from millstream_runner.chaos.oracle.sinks import Row, finished_files, rows_of, unfinished_files

ONCE = "exactly-once-transactional"
_NAME = re.compile(r"(?P<lane>.+)-(\d{16,})\.(\d{7,})-(\d{16,})\.(\d{7,})-e\d+\.[a-z]+")
_OUTSIDE = {
    "exactly-once-idempotent": "its target is outside: it is unknown whether it honours the key of a request",
    "at-least-once": "it may write a record again, and its target is outside",
    "no-target": "it writes nothing",
}


def sink_checks(
    pipeline: OraclePipeline,
    marks: Marks,
    directory: Path,
    guarantees: Mapping[str, str],
    id_field: str | None,
    *,
    ended: bool,
) -> list[Check]:
    """Every sink checked against its guarantee. `guarantees`: the id of each sink's guarantee."""
    checks: list[Check] = []
    digests: dict[str, Counter[bytes]] = {}
    for name in pipeline.sinks:
        own = guarantees.get(name, "")
        if own != ONCE:
            checks.append(
                Check(name, f"guarantee: {own}", Result.UNCHECKED, _OUTSIDE.get(own, "its guarantee is unknown"))
            )
            continue
        place = directory / name
        checks.append(_names(name, place))
        if ended:
            left = [f"{path.name} is unfinished" for path in unfinished_files(place)]
            checks.append(checked(name, "nothing unfinished is left behind", left))
        rows = Counter(_digest(row) for row in rows_of(place))
        written = sum(account.processed - account.fallback for account in accounts(marks, name))
        faults = [] if rows.total() == written else [f"{rows.total():,} records in files, {written:,} in the account"]
        checks.append(checked(name, "as many records as in the account", faults, f"{rows.total():,} records"))
        if id_field is not None:
            checks.append(_ids(name, place, id_field))
        digests[name] = rows
    return checks + _agreements(pipeline, digests)


def _names(name: str, directory: Path) -> Check:
    """The files of a lane are consecutive."""
    spans: dict[str, list[tuple[tuple[int, int], tuple[int, int]]]] = defaultdict(list)
    faults: list[str] = []
    for path in finished_files(directory):
        match = _NAME.fullmatch(path.name)
        if match is None:
            faults.append(f"{path.name} is not a name of a finished file")
            continue
        lane, after, after_index, end, end_index = match.groups()
        spans[lane].append(((int(after), int(after_index)), (int(end), int(end_index))))
    for lane, files in spans.items():
        for one, other in pairwise(sorted(files)):
            if other[0] != one[1]:
                how = "overlap" if other[0] < one[1] else "leave a gap"
                faults.append(f"lane {lane}: files {how} at {max(one[1], other[0])}")
    return checked(name, "its files are consecutive", faults, f"{sum(map(len, spans.values())):,} files")


def _ids(name: str, directory: Path, field: str) -> Check:
    values = Counter(str(row.get(field)) for row in rows_of(directory))
    faults = [f"{field} {value} appears {count} times" for value, count in values.items() if count > 1]
    return checked(name, f"each {field} once", faults, f"{len(values):,} values", repeated=len(faults))


def _agreements(pipeline: OraclePipeline, digests: Mapping[str, Counter[bytes]]) -> list[Check]:
    """Sinks with the same format and the same input vertices, each without conditions, have the same records."""
    fed: dict[tuple[str, ...], list[str]] = defaultdict(list)
    for name in digests:
        edges = [edge for edge in pipeline.edges if edge.target == name]
        strategy = pipeline.vertices[name]["sink"].get("retryStrategy", {}).get("onFailure", "retry")
        if any(edge.conditional or edge.lossy for edge in edges) or strategy not in ("retry", "stop"):
            continue
        kind = pipeline.vertices[name]["sink"]["file"].get("format", "jsonl")
        columns = json.dumps(pipeline.vertices[name]["sink"]["file"].get("columns"))
        fed[(kind, columns, *sorted(edge.source for edge in edges))].append(name)
    return [_agreement(names, digests) for names in fed.values() if len(names) > 1]


def _agreement(names: Sequence[str], digests: Mapping[str, Counter[bytes]]) -> Check:
    first = digests[names[0]]
    faults = [
        f"{(digests[name] - first).total() + (first - digests[name]).total():,} records differ in {name} and {names[0]}"
        for name in names[1:]
        if digests[name] != first
    ]
    return checked(
        ", ".join(names), "sinks with the same input have the same records", faults, f"{first.total():,} records"
    )


def _digest(row: Row) -> bytes:
    return hashlib.blake2b(json.dumps(row, sort_keys=True, default=str).encode(), digest_size=16).digest()
