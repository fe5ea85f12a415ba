"""The positions of lanes, as rows of the table of positions, and how the rows are interpreted. Pure.

    claim      this owner writes to this stream                  added before the owner reads what others wrote
    position   with n rows in the stream, the lane is here       added before the rows are appended

Rows are only added. Each lane adds one a day, so the table may remove those that are weeks old. BigQuery counts the
rows of a stream, and this count alone determines which of the noted positions has been reached. If two positions have
the same count, the later one applies.

Above it: the lane. Below it: nothing.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from google.cloud.bigquery_storage_v1 import types

from millstream.json_parser import parse_json
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
"""Columns of the table, with their types."""


class StreamClaim(NamedTuple):
    """An owner, and the stream to which it writes."""

    run: str
    epoch: int
    owner: str
    """A name that is unique to the process."""
    attempt: int
    """Number of the take-over in this process: after a failure, it takes the lane over again."""
    stream: str

    @property
    def rank(self) -> tuple[int, int, str]:
        """The claim with the higher rank replaces the other."""
        return self.epoch, self.attempt, self.owner


class StreamPosition(NamedTuple):
    """The position of a lane when its stream has `rows` rows."""

    number: int
    """Number of the position in its stream, in ascending order."""
    rows: int
    confirmed: int
    """How many of these rows BigQuery had confirmed when the position was noted."""
    position: Position
    frame: str
    refused: Sequence[tuple[Position, str, str]] = ()
    """Records that were set aside, up to this position."""


class History(NamedTuple):
    """The rows of the table for one lane."""

    claims: Sequence[StreamClaim]
    """In ascending order of rank."""
    noted: Mapping[str, Sequence[StreamPosition]]
    """The positions of each stream, in order."""

    def open_streams(self, below: StreamClaim) -> list[StreamClaim]:
        """Claims whose streams may still grow: the newest one with a position, and all after it. An owner notes its
        first position only when all streams before its own are finalized."""
        earlier = [claim for claim in self.claims if claim.rank < below.rank]
        settled = max((place for place, claim in enumerate(earlier) if self.noted.get(claim.stream)), default=0)
        return earlier[settled:]


def reached(noted: Sequence[StreamPosition], rows: int | None) -> StreamPosition | None:
    """The position for a stream with this number of rows; None if there is no such position. `rows`: None if BigQuery
    no longer has the stream; then the last position counts if all its rows were confirmed."""
    if rows is None:
        last = noted[-1]
        return last if last.confirmed == last.rows else None
    return next((one for one in reversed(noted) if one.rows == rows), None)


def refused_until(
    noted: Sequence[StreamPosition], end: StreamPosition, after: Position
) -> dict[Position, tuple[str, str]]:
    """The records that were set aside after the position `after`, according to the notes up to `end`."""
    found: dict[Position, tuple[str, str]] = {}
    for one in noted:
        if one.number <= end.number:
            found.update({at: (reason, detail) for at, reason, detail in one.refused if at > after})
    return found


def claim_cells(pipeline: str, lane: str, claim: StreamClaim) -> list[Any]:
    """A claim as a row."""
    *owner, stream = claim
    return [pipeline, lane, *owner, 0, stream, *[None] * 6]


def noted_cells(pipeline: str, lane: str, claim: StreamClaim, noted: StreamPosition) -> list[Any]:
    """A position as a row."""
    *owner, stream = claim
    refused = json.dumps(noted.refused) if noted.refused else None
    place = [noted.rows, noted.confirmed, *noted.position, noted.frame]
    return [pipeline, lane, *owner, noted.number, stream, *place, refused]


def history_of(rows: Iterable[Mapping[str, Any]]) -> History:
    """The history in these rows, which may come in any order and more than once."""
    claims: set[StreamClaim] = set()
    noted: dict[str, dict[int, StreamPosition]] = {}
    for row in rows:
        claim = StreamClaim(row["run"], row["epoch"], row["owner"], row["attempt"], row["stream"])
        claims.add(claim)
        if row["row_count"] is not None:
            refused = [(Position(*at), reason, detail) for at, reason, detail in parse_json(row["refused"] or "[]")]
            position = Position(row["sequence"], row["record"])
            noted.setdefault(claim.stream, {})[row["number"]] = StreamPosition(
                row["number"], row["row_count"], row["confirmed"], position, row["frame"] or "", refused
            )
    ordered = {stream: [of[number] for number in sorted(of)] for stream, of in noted.items()}
    return History(sorted(claims, key=lambda claim: claim.rank), ordered)


def schema_faults(schema: Any) -> list[str]:
    """The columns that the table lacks."""
    known = {
        field.name: types.TableFieldSchema.Type(field.type_).name
        for field in schema.fields
        if field.mode != types.TableFieldSchema.Mode.REQUIRED
    }
    return [f"{name} {kind}" for name, kind in COLUMNS.items() if known.get(name) != kind]


def creation(table: str) -> str:
    """A statement that creates the table, which removes rows after a while."""
    columns = ", ".join(f"{name} {kind}" for name, kind in COLUMNS.items())
    return f"CREATE TABLE `{table}` ({columns}) PARTITION BY _PARTITIONDATE OPTIONS (partition_expiration_days = 60)"


def restriction(pipeline: str, lane: str) -> str:
    """The SQL condition for the rows of a lane."""
    return f"pipeline = {literal(pipeline)} AND lane = {literal(lane)}"


def literal(value: str | int) -> str:
    """A value as a literal of BigQuery's SQL."""
    if isinstance(value, int):
        return str(value)
    escaped = value.replace("\\", "\\\\").replace("'", "\\'").replace("\n", "\\n")
    return f"'{escaped}'"
