"""The envelope of a record: any record fits, and comes out of it as it went in."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from millstream.dead_letter import (
    DEAD_LETTER_HEADERS,
    MEMBERS,
    Envelope,
    envelope_line,
    envelope_of,
    headers_of,
    read_envelope,
)

TEXTS = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)


@given(
    value=st.binary(max_size=40) | TEXTS.map(str.encode),
    time_us=st.integers(-(2**63), 2**63 - 1),
    keys=st.lists(TEXTS, max_size=3),
    headers=st.dictionaries(TEXTS.filter(lambda name: name not in DEAD_LETTER_HEADERS), st.binary(max_size=8)),
    record_id=TEXTS.filter(bool),
    reason=TEXTS,
)
def test_a_record_comes_out_of_its_envelope_as_it_went_in(
    value: bytes, time_us: int, keys: list[str], headers: dict[str, bytes], record_id: str, reason: str
) -> None:
    ours = headers_of(reason, "stack\n  trace", "p/map/in-map.0", position="map/in-map/0/3/4", run="r")
    envelope = envelope_of(value, time_us, [part.encode() for part in keys], {**headers, **ours}, record_id)
    line = envelope_line(envelope)
    assert "\n" not in line
    assert set(envelope) <= set(MEMBERS)
    assert read_envelope(line) == Envelope(
        value,
        time_us,
        tuple(keys),
        headers,
        record_id,
        reason=reason,
        detail="stack\n  trace",
        vertex="map",
        lane="in-map.0",
        position="map/in-map/0/3/4",
        run="r",
    )


def test_an_envelope_reads_well() -> None:
    headers = {"h": b"1", **headers_of("no JSON", "", "p/price/read-price.0", position="price/read-price/0/3/4")}
    envelope = envelope_of("grüße".encode(), 0, [b"ada"], headers, "web-7")
    assert envelope == {
        "reason": "no JSON",
        "vertex": "price",
        "lane": "read-price.0",
        "position": "price/read-price/0/3/4",
        "id": "web-7",
        "eventTime": "1970-01-01T00:00:00.000000Z",
        "keys": ["ada"],
        "headers": {"h": "1"},
        "value": "grüße",
    }
    assert list(envelope) == [name for name in MEMBERS if name in envelope]


@pytest.mark.parametrize(
    "line",
    [
        "not json",
        "[" * 100_000,
        "[]",
        '{"value": "a"}',
        '{"eventTime": "1970-01-01T00:00:00Z"}',
        '{"eventTime": "yesterday", "value": "a"}',
        '{"eventTime": "1970-01-01T00:00:00Z", "valueBase64": "?"}',
        '{"eventTime": 1, "value": "a"}',
        '{"eventTime": "1970-01-01T00:00:00Z", "value": 1}',
        '{"eventTime": "1970-01-01T00:00:00Z", "value": "a", "headers": []}',
        json.dumps({"eventTime": "1970-01-01T00:00:00", "value": "a"}),
    ],
)
def test_what_is_no_envelope_is_refused(line: str) -> None:
    with pytest.raises(ValueError, match=r"^not "):
        read_envelope(line)
