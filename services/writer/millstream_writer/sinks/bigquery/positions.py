"""How far lanes are, as rows of the table of positions; and what they mean. Pure.

    claim      this owner writes into this stream             before it looks at what others wrote
    position   with so many rows in the stream, the lane is here     before the rows are appended

Rows are only added. BigQuery counts the rows of a stream, so which of the noted positions has been reached follows from
that count, and from nothing else. Of two positions with the same count, the later one is meant.

Above it: the lane. Below it: nothing.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from google.cloud.bigquery_storage_v1 import types

from millstream.record import Position

COLUMNS: Mapping[str, str] = {
    "pipeline": "STRING",
    "lane": "STRING",
    "run": "STRING",
    "epoch": "INT64",
    "owner": "STRING",
    "attempt": "INT64",
    "number": "INT64",
    "stream": "STRING",
    "row_count": "INT64",
    "confirmed": "INT64",
    "sequence": "INT64",
    "record": "INT64",
    "frame": "STRING",
    "refused": "STRING",
}
"""Of the table, with their types."""

Refused = Mapping[Position, tuple[str, str]]


class Claim(NamedTuple):
    """An owner, and the stream into which it writes."""

    run: str
    epoch: int
    owner: str
    """A name that no other process has."""
    attempt: int
    """A process that lost track of its stream takes the lane over again."""
    stream: str

    @property
    def rank(self) -> tuple[int, int, str]:
        """A higher one replaces a lower."""
        return self.epoch, self.attempt, self.owner


class Noted(NamedTuple):
    """Where a lane is when a stream has so many rows."""

    number: int
    """Rising, in one stream."""
    rows: int
    confirmed: int
    """Of these rows, how many BigQuery had acknowledged when it was written."""
    position: Position
    frame: str
    refused: Sequence[tuple[Position, str, str]] = ()
    """Records that were set aside, up to this position."""


class History(NamedTuple):
    """What the table has of a lane."""

    claims: Sequence[Claim]
    """By rank."""
    noted: Mapping[str, Sequence[Noted]]
    """By stream, in order."""

    def newest(self) -> Claim | None:
        """The claim of the highest rank."""
        return self.claims[-1] if self.claims else None

    def open_streams(self, below: Claim) -> list[Claim]:
        """Claims whose streams may still grow: the newest with a position, and those after it. An owner notes its
        first position only when all streams before its own are finalized."""
        earlier = [claim for claim in self.claims if claim.rank < below.rank]
        settled = max((place for place, claim in enumerate(earlier) if self.noted.get(claim.stream)), default=0)
        return earlier[settled:]


def reached(noted: Sequence[Noted], rows: int | None) -> Noted | None:
    """The position of a stream with so many rows. `rows`: None where BigQuery no longer has the stream; then the last
    position is known only if all its rows were confirmed. None where there is no such position."""
    if rows is None:
        last = noted[-1]
        return last if last.confirmed == last.rows else None
    return next((one for one in reversed(noted) if one.rows == rows), None)


def refused_until(noted: Sequence[Noted], end: Noted, after: Position) -> dict[Position, tuple[str, str]]:
    """Records that were set aside behind a position, by notes that count."""
    found: dict[Position, tuple[str, str]] = {}
    for one in noted:
        if one.number <= end.number:
            found.update({at: (reason, detail) for at, reason, detail in one.refused if at > after})
    return found


def claim_cells(pipeline: str, lane: str, claim: Claim) -> list[Any]:
    """A claim as a row."""
    run, epoch, owner, attempt, stream = claim
    return [pipeline, lane, run, epoch, owner, attempt, 0, stream, *[None] * 6]


def noted_cells(pipeline: str, lane: str, claim: Claim, noted: Noted) -> list[Any]:
    """A position as a row."""
    run, epoch, owner, attempt, stream = claim
    place = [noted.position.sequence, noted.position.record_index]
    refused = json.dumps(noted.refused) if noted.refused else None
    counts = [noted.rows, noted.confirmed]
    return [pipeline, lane, run, epoch, owner, attempt, noted.number, stream, *counts, *place, noted.frame, refused]


def history_of(rows: Iterable[Mapping[str, Any]]) -> History:
    """Rows may come in any order, and more than once."""
    claims: set[Claim] = set()
    noted: dict[str, dict[int, Noted]] = {}
    for row in rows:
        claim = Claim(row["run"], row["epoch"], row["owner"], row["attempt"], row["stream"])
        claims.add(claim)
        if row["row_count"] is not None:
            refused = [(Position(*at), reason, detail) for at, reason, detail in json.loads(row["refused"] or "[]")]
            position = Position(row["sequence"], row["record"])
            noted.setdefault(claim.stream, {})[row["number"]] = Noted(
                row["number"], row["row_count"], row["confirmed"], position, row["frame"] or "", refused
            )
    ordered = {stream: [of[number] for number in sorted(of)] for stream, of in noted.items()}
    return History(sorted(claims, key=lambda claim: claim.rank), ordered)


def schema_faults(schema: Any) -> list[str]:
    """What the table lacks."""
    known = {
        field.name: types.TableFieldSchema.Type(field.type_).name
        for field in schema.fields
        if field.mode != types.TableFieldSchema.Mode.REQUIRED
    }
    return [f"{name} {kind}" for name, kind in COLUMNS.items() if known.get(name) != kind]


def creation(table: str) -> str:
    """A statement that creates the table."""
    return f"CREATE TABLE `{table}` ({', '.join(f'{name} {kind}' for name, kind in COLUMNS.items())})"


def restriction(pipeline: str, lane: str) -> str:
    """The condition for rows of a lane."""
    return f"pipeline = {literal(pipeline)} AND lane = {literal(lane)}"


def literal(value: str | int) -> str:
    """As BigQuery's SQL writes it."""
    if isinstance(value, int):
        return str(value)
    escaped = value.replace("\\", "\\\\").replace("'", "\\'").replace("\n", "\\n")
    return f"'{escaped}'"
