"""The built-in functions."""

from __future__ import annotations

from array import array
from typing import Any

import pytest

from millstream.frame import build_frame
from millstream.spec.programs import CatBuiltin, EventTimeBuiltin, FilterBuiltin
from millstream.udf.answers import MapAnswer, Result
from millstream.udf.builtin import open_builtin
from millstream.udf.checks import check_map_answer
from millstream.udf.protocol import StreamName
from millstream_udf import columns

NAME = StreamName("flights", "clean", "in-clean.0", 0)


async def answer_of(
    builtin: CatBuiltin | FilterBuiltin | EventTimeBuiltin,
    values: list[bytes],
    headers: list[dict[str, bytes]] | None = None,
) -> MapAnswer:
    frame = build_frame(values, array("q", range(len(values))), ingest_time_us=1, headers=headers)
    async with open_builtin(builtin, NAME) as stream:
        answer = await stream.call(frame, watermark_us=0)
    check_map_answer(answer, len(values), times_allowed=True)
    return answer


async def kept(values: list[bytes], **condition: Any) -> list[bytes]:
    builtin = FilterBuiltin.model_validate({"name": "filter", "kwargs": {"field": "a.b", **condition}})
    return columns.unpack_bytes((await answer_of(builtin, values)).values)


async def test_cat_hands_on() -> None:
    answer = await answer_of(CatBuiltin(name="cat"), [b"a", b""])
    assert columns.unpack_bytes(answer.values) == [b"a", b""]
    assert not answer.parents


JSON = [
    b'{"a":{"b":1}}',
    b'{"a":{"b":true}}',
    b'{"a":{"b":"one"}}',
    b'{"a":{}}',
    b'{"a":{"b":null}}',
    b"no json",
    b"[" * 9999,
]


@pytest.mark.parametrize(
    ("condition", "rows"),
    [
        ({"equals": 1}, [0]),
        ({"equals": True}, [1]),
        ({"equals": "one"}, [2]),
        ({"equals": 1.0}, [0]),
        ({"matches": "^o.e$"}, [2]),
        ({"matches": "n"}, [2]),
        ({"exists": True}, [0, 1, 2, 4]),
        ({"exists": False}, [3, 5, 6]),
    ],
)
async def test_filter_keeps_what_fulfils_the_condition(condition: dict[str, Any], rows: list[int]) -> None:
    assert await kept(JSON, **condition) == [JSON[row] for row in rows]


async def test_a_filter_that_keeps_everything_copies_nothing() -> None:
    builtin = FilterBuiltin.model_validate({"name": "filter", "kwargs": {"field": "a", "exists": True}})
    answer = await answer_of(builtin, [b'{"a":1}'] * 3)
    assert answer.records == 3
    assert not answer.parents


async def test_event_time_of_a_field() -> None:
    builtin = EventTimeBuiltin.model_validate({"name": "eventTime", "kwargs": {"field": "at", "format": "epoch_ms"}})
    answer = await answer_of(builtin, [b'{"at":5}', b'{"at":"7"}'])
    assert columns.unpack_times(answer.event_times_us).tolist() == [5000, 7000]
    assert not answer.outcomes


async def test_event_time_of_a_header() -> None:
    builtin = EventTimeBuiltin.model_validate({"name": "eventTime", "kwargs": {"header": "at"}})
    answer = await answer_of(builtin, [b"x", b"y"], [{"at": b"1970-01-01T00:00:01Z"}, {}])
    assert columns.unpack_times(answer.event_times_us).tolist() == [1_000_000]
    (outcome,) = answer.outcomes
    assert (outcome.index, outcome.result) == (1, Result.ERROR)
    assert "there is no header `at`" in outcome.reason


async def test_a_time_that_cannot_be_read_is_the_failure_of_its_record() -> None:
    builtin = EventTimeBuiltin.model_validate({"name": "eventTime", "kwargs": {"field": "at"}})
    good = b'{"at":"1970-01-01T00:00:01Z"}'
    answer = await answer_of(builtin, [good, b"no json", b'{"at":"soon"}', b"{}", good])
    assert columns.unpack_offsets(answer.parents).tolist() == [0, 4]
    assert columns.unpack_times(answer.event_times_us).tolist() == [1_000_000] * 2
    assert [outcome.index for outcome in answer.outcomes] == [1, 2, 3]
    assert "the value is not JSON" in answer.outcomes[0].reason
