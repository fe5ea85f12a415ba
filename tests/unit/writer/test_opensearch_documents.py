"""Values that cannot be parsed become failures of their records, not of the lane."""

from __future__ import annotations

import pytest

from millstream_connectors.opensearch.settings import OpenSearchSink
from millstream_connectors.opensearch.sink.documents import OwnerVersions, convert
from tests.unit.writer.sink_frames import sink_frame


@pytest.mark.parametrize("value", [b'{"a": ' * 500 + b"1" + b"}" * 500, b'{"id": "x", "n": 1e999999999999}'])
def test_json_that_cannot_be_parsed_is_refused_alone(value: bytes) -> None:
    settings = OpenSearchSink.model_validate(
        {"url": "http://127.0.0.1:9200", "index": "i", "mode": "upsert", "id": "id"}
    )
    frame = sink_frame([b'{"id": "a"}', value, b'{"id": "b"}'], 1)
    puts, failures = convert(frame, settings, "run", OwnerVersions(1, 1))
    assert [put.row for put in puts] == [0, 2]
    assert [failure.index for failure in failures] == [1]
