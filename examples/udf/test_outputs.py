from outputs import process

from millstream_udf.testing import run


def test_an_order_becomes_its_lines() -> None:
    order = b'{"id": 7, "cancelled": false, "lines": [{"item": "nut", "pieces": 500}]}'
    results = run(process, [order, b'{"cancelled": true}', b"no json"])

    (message,) = results.of(0)
    assert message.value == b'{"item": "nut", "pieces": 500}'
    assert (message.keys, message.tags, message.headers) == (("nut",), ("large",), {"order": b"7"})

    assert results.of(1) == []  # filtered

    (outcome,) = results.outcomes
    assert (outcome.index, outcome.result) == (2, "error")
    assert outcome.reason.startswith("json.decoder.JSONDecodeError")
