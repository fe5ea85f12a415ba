"""An account has the same counts in memory and in a mark, and adding leaves none out."""

from __future__ import annotations

from dataclasses import asdict, fields

from millstream.account import Account
from millstream.wire.ledger.v1 import mark_pb2

COUNTS = [field.name for field in fields(Account) if field.name != "dropped"]
EACH_DIFFERENT = {name: number for number, name in enumerate(COUNTS, 1)}


def test_a_message_has_every_count() -> None:
    assert {field.name for field in mark_pb2.Account.DESCRIPTOR.fields} == {*COUNTS, "dropped"}
    account = Account(**EACH_DIFFERENT, dropped={"late": 7})
    message = account.to_message()
    assert {name: getattr(message, name) for name in COUNTS} == EACH_DIFFERENT
    assert Account.from_message(message) == account


def test_every_count_is_added() -> None:
    account = Account(**EACH_DIFFERENT, dropped={"late": 7})
    account.add(Account(**EACH_DIFFERENT, dropped={"late": 1, "malformed": 2}))
    doubled = {name: 2 * count for name, count in EACH_DIFFERENT.items()}
    assert asdict(account) == {**doubled, "dropped": {"late": 8, "malformed": 2}}
