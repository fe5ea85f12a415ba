from typed import Line, Order, Total, process

from millstream_udf.testing import run


def test_an_order_becomes_its_total() -> None:
    results = run(process, [Order(7, [Line("nut", 500, 0.5)]), Order(8), {"id": 9, "lines": [{"item": "bolt"}]}])
    assert results.objects() == [Total(7, 250.0)]

    (outcome,) = results.outcomes
    assert (outcome.index, outcome.code) == (2, "MS-3005")
    assert outcome.reason == 'the value does not fit Order: field `lines[0].pieces` is missing; the value has "item"'
