from enrich import Enrich

import millstream_udf as udf
from millstream_udf.testing import KeptStates, Results, run

CUSTOMER = {"user": "ada", "name": "Ada", "city": "London"}


def paid(cents: int, **more: object) -> udf.Record[dict[str, object]]:
    return udf.Record({"user": "ada", "cents": cents, **more}, keys=("ada",))


def changed(city: str, states: KeptStates | None = None) -> Results:
    return run(Enrich, [udf.Record({**CUSTOMER, "city": city}, keys=("ada",))], edge="customers", states=states)


def test_a_payment_gets_what_is_known_of_its_customer() -> None:
    known = changed("London").states
    first = run(Enrich, [paid(500)], edge="payments", states=known)
    assert first.objects() == [{"user": "ada", "cents": 500, "name": "Ada", "city": "London"}]
    moved = changed("Turin", first.states)
    assert moved.objects() == []
    second = run(Enrich, [paid(20)], edge="payments", states=moved.states)
    assert [row["city"] for row in second.objects()] == ["Turin"]


def test_a_payment_waits_until_its_customer_is_known() -> None:
    early = run(Enrich, [paid(500), paid(20)], edge="payments")
    assert early.objects() == []
    known = changed("London", early.states)
    assert [(row["cents"], row["city"]) for row in known.objects()] == [(500, "London"), (20, "London")]
    assert known.states is not None
    assert known.states["ada"]["waiting"] == []
