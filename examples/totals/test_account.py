from account import Account

import millstream_udf as udf
from millstream_udf.testing import run


def paid(user: str, cents: int) -> udf.Record[dict[str, object]]:
    return udf.Record({"user": user, "cents": cents}, keys=(user,))


def test_each_user_has_a_total() -> None:
    results = run(Account, [paid("ada", 500), paid("bob", 30), paid("ada", 20)])
    assert results.objects() == [
        {"user": "ada", "payment": 1, "total": 500, "largest": 500},
        {"user": "bob", "payment": 1, "total": 30, "largest": 30},
        {"user": "ada", "payment": 2, "total": 520, "largest": 500},
    ]


def test_it_goes_on_from_what_it_remembers_and_a_dropped_payment_changes_nothing() -> None:
    results = run(Account, [paid("ada", 0), paid("ada", 1)], states={"ada": {"total": 520, "payments": 2}})
    assert [outcome.result for outcome in results.outcomes] == ["drop"]
    assert results.states is not None
    assert dict(results.states["ada"]) == {"total": 521, "largest": 1, "payments": 3}
