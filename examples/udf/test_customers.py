from customers import Customers, Order

import millstream_udf as udf
from millstream_udf.testing import run


def order(key: str, item: str, amount: int) -> udf.Record[dict[str, object]]:
    return udf.Record({"item": item, "amount": amount}, keys=(key,))


def test_a_customer_is_remembered() -> None:
    before = {"ada": {"total": 5, "last": [Order("bolt", 5)]}}
    results = run(Customers, [order("ada", "nut", 2), order("bob", "nut", 9), order("ada", "nut", 2)], states=before)
    assert results.objects() == [
        {"total": 7, "orders": 2, "clicks": 1},
        {"total": 9, "orders": 1, "clicks": 1},
    ]
    assert results.states is not None
    assert results.states["ada"]["last"] == [Order("bolt", 5), Order("nut", 2)]

    later = run(Customers, [order("bob", "screw", 1)], states=results.states)  # another call
    assert later.objects() == [{"total": 10, "orders": 2, "clicks": 2}]
