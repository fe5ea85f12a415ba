"""States on the wire: what a call has of them, and which entries are changes."""

from __future__ import annotations

import asyncio
from array import array
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
from google.protobuf.wrappers_pb2 import StringValue

import millstream_udf as udf
from millstream_udf.answering import answer_map, context_of, encode_map
from millstream_udf.defining import define
from millstream_udf.execution import open_function
from millstream_udf.sources import frame_of
from millstream_udf.state_entries import Change, Changes, StateEntries, pack_changes, pack_entries, unpack_changes
from millstream_udf.testing import KeptStates, run
from millstream_udf.wire.udf.v1 import udf_pb2

HELLO = udf_pb2.Hello(protocol_version=1, kind=udf_pb2.KIND_MAP)
Row = tuple[int, int, bytes, bytes]
"""Key, state, item and value."""


def answered(
    function: Any,
    values: list[bytes],
    rows: list[Row],
    *,
    keys: list[int] | None = None,
    versions: list[int] | None = None,
    times: list[int] | None = None,
    data: bytes | None = None,
) -> udf_pb2.SealedMapAnswer:
    """The answer to a call with these entries."""
    definition = define(function, "f")
    entries = StateEntries(
        array("I", keys or [0] * len(values)),
        array("I", [row[0] for row in rows]),
        bytes(row[1] for row in rows),
        [row[2] for row in rows] if any(row[2] for row in rows) else None,
        [row[3] for row in rows],
        None if versions is None else array("I", versions),
    )
    times = times or [0] * len(values)
    frame = frame_of([udf.Record(value, time) for value, time in zip(values, times, strict=True)])
    call = udf_pb2.SealedMapCall(call_id=1, frame=frame, states=pack_entries(entries) if data is None else data)

    async def answer() -> udf_pb2.SealedMapAnswer:
        async with open_function(definition, context_of(HELLO)) as opened:
            return await answer_map(opened.lane(), HELLO, call, now_us=lambda: 1_000_000)

    sealed = asyncio.run(answer())
    return udf_pb2.SealedMapResponse.FromString(b"".join(encode_map(sealed))).answer


def changed(*arguments: Any, **named: Any) -> list[Change]:
    answer = answered(*arguments, **named)
    assert not answer.error, answer.error
    assert not answer.outcomes, answer.outcomes
    return unpack_changes(answer.changes)


def of_value(kind: Any, does: Callable[[Any], object], **options: Any) -> Any:
    """A function with a value, a list, a map and a counter."""

    @udf.map
    class Function:
        one = udf.value(kind, **options)
        some = udf.map_state(str, kind, **{name: given for name, given in options.items() if name != "default"})
        several = udf.list_state(int)
        count = udf.counter()

        def process(self, value: bytes) -> None:
            does(self)

    return Function


def change(value: bytes | None, state: int = 0, item: bytes = b"", expires_us: int = 0) -> Change:
    return (0, state, item, value, expires_us)


def test_only_what_has_other_bytes_is_a_change() -> None:
    rows = [(0, 0, b"", b'{"a":[1]}'), (0, 1, b'"x"', b'{"a":[1]}'), (0, 2, bytes(8), b"7")]

    def look(f: Any) -> None:
        assert f.one == f.some["x"] == {"a": [1]}
        assert list(f.several) == [7]
        assert f.count.value == 0

    def write_the_same(f: Any) -> None:
        f.one = {"a": [1]}
        f.some["x"] = f.one
        f.several[0] = 7

    def change_in_place(f: Any) -> None:
        f.one["a"].append(2)
        f.some["x"]["b"] = 3
        f.several.append(8)
        f.count += 0

    def there_and_back(f: Any) -> None:
        # Two records: the second one takes back what the first one has done.
        if "b" in f.one:
            del f.one["b"], f.some["x"], f.some["y"]
            f.some["x"] = {"a": [1]}
        else:
            f.one["b"] = 1
            f.some["y"] = f.some["x"] = {}

    assert changed(of_value(dict, look), [b""], rows) == []
    assert changed(of_value(dict, write_the_same), [b""], rows) == []
    assert changed(of_value(dict, there_and_back), [b"", b""], rows) == []
    assert changed(of_value(dict, change_in_place), [b""], rows) == [
        change(b'{"a":[1,2]}'),
        change(b'{"a":[1],"b":3}', 1, b'"x"'),
        change(b"8", 2, b"\0\0\0\0\0\0\0\1"),
        change(bytes(8), 3),
    ]


def test_the_same_value_in_other_bytes_is_no_change() -> None:
    rows = [(0, 0, b"", b' {"b": 1.0, "a": "\\u00e9"}')]
    seen: list[Any] = []
    assert changed(of_value(dict, lambda f: seen.append(f.one)), [b""], rows) == []
    assert seen == [{"b": 1.0, "a": "é"}]
    assert changed(of_value(dict, lambda f: f.one.update(b=1)), [b""], rows) == [change('{"b":1,"a":"é"}'.encode())]


def test_a_default_that_was_read_is_not_stored() -> None:
    assert changed(of_value(dict, lambda f: f.one.get("a"), default={}), [b""], []) == []
    assert changed(of_value(dict, lambda f: f.one.update(a=1), default=dict), [b""], []) == [change(b'{"a":1}')]


def test_deletions() -> None:
    rows = [(0, 0, b"", b"5"), (0, 1, b'"x"', b"5"), (0, 2, bytes(8), b"7"), (0, 3, b"", bytes(8))]

    def delete(f: Any) -> None:
        del f.one, f.some, f.several, f.count

    assert changed(of_value(int, delete), [b""], rows) == [
        change(None),
        change(None, 1, b'"x"'),
        change(None, 2, bytes(8)),
        change(None, 3),
    ]
    assert changed(of_value(int, delete), [b""], []) == []


def test_the_newest_items_of_a_list_stay() -> None:
    @udf.map
    class Listing:
        last = udf.list_state(bytes, max_items=2)

        def process(self, value: bytes) -> None:
            self.last.append(value)

    places = [number.to_bytes(8, "big") for number in range(300)]
    rows = [(0, 0, places[255], b"a"), (0, 0, places[256], b"b")]
    # One that came and went within the call is no change.
    assert sorted(changed(Listing, [b"c", b"d", b"e"], rows)) == [
        change(None, 0, places[255]),
        change(None, 0, places[256]),
        change(b"d", 0, places[258]),
        change(b"e", 0, places[259]),
    ]


def test_expiry() -> None:
    ttl = timedelta(seconds=2)
    add = of_value(int, lambda f: setattr(f, "one", (f.one or 0) + 1), ttl=ttl)
    assert changed(add, [b"", b""], [], times=[5, 3]) == [change(b"2", expires_us=2_000_005)]
    renew = of_value(int, lambda f: setattr(f, "one", 1), ttl=ttl, clock="processing")
    assert changed(renew, [b""], [(0, 0, b"", b"1")]) == [change(b"1", expires_us=3_000_000)]
    assert changed(of_value(int, lambda f: f.one, ttl=ttl), [b""], [(0, 0, b"", b"1")]) == []


def test_expiry_after_a_deletion() -> None:
    ttl = timedelta(seconds=2)

    def write_or_delete(f: Any) -> None:
        if f.one is None:
            f.one = 1
        else:
            del f.one

    function = of_value(int, write_or_delete, ttl=ttl)
    assert changed(function, [b"", b""], [], times=[5, 3]) == []
    assert changed(function, [b"", b"", b""], [], times=[5, 4, 3]) == [change(b"1", expires_us=2_000_003)]
    deleted = of_value(int, lambda f: delattr(f, "one"), ttl=ttl)
    assert changed(deleted, [b""], [(0, 0, b"", b"1")]) == [change(None)]


def test_expiry_in_a_batch_is_of_the_latest_record() -> None:
    @udf.map(batch=True)
    class Batch:
        one = udf.value(int, default=0, ttl=timedelta(seconds=2))

        def process(self, values: list[bytes], states: Any) -> list[None]:
            states[0].one += 1
            return [None] * len(values)

    assert changed(Batch, [b"", b"", b""], [], times=[5, 7, 3]) == [change(b"1", expires_us=2_000_007)]


def test_versions() -> None:
    def rename(old: Any) -> Any:
        return {"amount": old["total"]}

    def to_cents(old: Any) -> Any:
        return {"cents": old["amount"] * 100}

    options: dict[str, Any] = {"version": 3, "migrate": {1: rename, 2: to_cents}}
    seen: list[Any] = []
    rows = [(0, 0, b"", b'{"total":5}'), (0, 1, b'"x"', b'{"amount":6}'), (0, 1, b'"y"', b'{"cents":7}')]

    def look(f: Any) -> None:
        seen.append([f.one, dict(f.some)])

    assert changed(of_value(dict, look, **options), [b""], rows, versions=[1, 2, 3]) == []
    assert seen == [[{"cents": 500}, {"x": {"cents": 600}, "y": {"cents": 7}}]]

    def write(f: Any) -> None:
        f.one["more"] = 1
        # The same bytes, in another version.
        f.some["x"] = {"amount": 6}

    assert changed(of_value(dict, write, **options), [b""], rows, versions=[1, 2, 3]) == [
        change(b'{"cents":500,"more":1}'),
        change(b'{"amount":6}', 1, b'"x"'),
    ]
    # All are of version 1.
    assert changed(of_value(dict, look, version=2, migrate={1: rename}), [b"", b""], rows[:1]) == []
    assert seen[1:] == [[{"amount": 5}, {}]] * 2
    assert of_value(dict, look, **options).one.spec().message().oldest_version == 1
    assert of_value(dict, look).one.spec().message().oldest_version == 1


def test_what_is_migrated_expires_like_what_is_written() -> None:
    options: dict[str, Any] = {"version": 2, "migrate": {1: lambda old: old + 1}, "ttl": timedelta(seconds=2)}

    def add(f: Any) -> None:
        f.one += 1
        f.some["x"] = 7

    rows = [(0, 0, b"", b"5"), (0, 1, b'"x"', b"7")]
    assert changed(of_value(int, add, **options), [b""], rows, versions=[1, 1], times=[3]) == [
        change(b"7", expires_us=2_000_003),
        change(b"7", 1, b'"x"', expires_us=2_000_003),
    ]


def test_a_version_that_cannot_be_read_fails_its_record() -> None:
    (outcome,) = answered(
        of_value(dict, lambda f: f.one, version=3, migrate={2: id}), [b""], [(0, 0, b"", b"{}")]
    ).outcomes
    assert "state one has values of version 1, and this function reads version 2 and later ones" in outcome.reason


def test_a_newer_version_fails_its_record() -> None:
    does: Any
    for does in (lambda f: f.one, lambda f: f.__setattr__("one", 1), lambda f: delattr(f, "one")):
        answer = answered(of_value(int, does, version=2), [b""], [(0, 0, b"", b"1")], versions=[3])
        assert "state one has values of version 3, and this function knows 2" in answer.outcomes[0].reason
        assert answer.outcomes[0].result == udf_pb2.Outcome.RESULT_ERROR
        assert not answer.changes


def test_the_same_bytes_in_another_version_after_a_deletion() -> None:
    def delete_or_write(f: Any) -> None:
        if f.one is None:
            f.one = 5
        else:
            del f.one

    function = of_value(int, delete_or_write, version=2, migrate={1: lambda euros: euros * 100})
    assert changed(function, [b"", b""], [(0, 0, b"", b"5")]) == [change(b"5")]
    assert changed(function, [b""], [(0, 0, b"", b"5")]) == [change(None)]


def test_versions_of_a_function_in_the_kit() -> None:
    old = KeptStates(of_value(str, id), {"ada": {"one": "5", "some": {"x": "6"}}})
    new = of_value(int, lambda f: setattr(f, "one", f.one + f.some["x"]), version=2, migrate={1: int})
    states = run(new, [udf.Record(b"", keys=("ada",))], states=old.carried(new)).states
    assert states is not None
    assert states["ada"] == {"one": 11, "some": {"x": 6}}
    with pytest.raises(TypeError, match=r"the states are not those of Function: use states.carried\(Function\)"):
        run(new, [b""], states=old)
    with pytest.raises(TypeError, match="state some is not"):
        KeptStates(of_value(bytes, id), {"a": {"some": {"x": b""}}}).carried(new)


@pytest.mark.parametrize(
    ("kind", "value", "message"),
    [
        (int, "text", "a str is not what the state stores (int): the value does not fit int: it is"),
        (int, True, "a bool is not what the state stores (int)"),
        (float, float("nan"), "JSON has no number nan"),
        (bytes, "text", "a str is not what the state stores (bytes)"),
        (dict, {"a": object()}, "a dict cannot be written as JSON: JSON has no object (field `a`)"),
        (dict[str, int], {"a": "b"}, "field `a` is"),
        (StringValue, "text", "a str is not what the state stores (StringValue)"),
    ],
)
def test_a_value_that_cannot_be_stored_fails_its_record(kind: Any, value: Any, message: str) -> None:
    does: Any
    for does in (
        lambda f: (f.count.add(), setattr(f, "one", value)),  # type: ignore[func-returns-value]  # nothing is
        lambda f: (f.some.__setitem__("x", value), f.count.add()),
    ):
        answer = answered(of_value(kind, does), [b"", b""], [])
        assert [one.result for one in answer.outcomes] == [
            udf_pb2.Outcome.RESULT_ERROR,
            udf_pb2.Outcome.RESULT_HELD_UP,
        ]
        assert message in answer.outcomes[0].reason
        assert not answer.outcomes[0].detail
        assert not answer.changes
    assert all("state " in one.reason for one in answer.outcomes[:1])


def test_a_stored_value_that_does_not_fit_fails_its_record() -> None:
    answer = answered(of_value(int, lambda f: f.one), [b""], [(0, 0, b"", b'"text"')])
    assert answer.outcomes[0].result == udf_pb2.Outcome.RESULT_ERROR
    assert "a stored value of state one cannot be read: the value does not fit int" in answer.outcomes[0].reason


def test_wrong_items() -> None:
    does: Any
    for does in (lambda f: f.some.get(1), lambda f: f.some.__setitem__(1, 1), lambda f: 1 in f.some):
        (outcome,) = answered(of_value(int, does), [b""], []).outcomes
        assert outcome.reason == "TypeError: state some: an item of the state is a str, not a int"
        assert "in <lambda>" in outcome.detail


def test_counters_have_64_bits() -> None:
    full = (2**63 - 1).to_bytes(8, "little", signed=True)
    (outcome,) = answered(of_value(int, lambda f: f.count.add()), [b""], [(0, 3, b"", full)]).outcomes
    assert "counter count would be 9223372036854775808" in outcome.reason
    (outcome,) = answered(of_value(int, lambda f: f.count.add()), [b""], [(0, 3, b"", b"1")]).outcomes
    assert "has 1 bytes, and is no counter" in outcome.reason
    assert changed(of_value(int, lambda f: f.count.add(-3)), [b""], []) == [
        change((-3).to_bytes(8, "little", signed=True), 3)
    ]


def test_a_call_without_entries() -> None:
    answer = answered(of_value(int, id), [b""], [], data=b"")
    assert "this Millstream does not know functions with states" in answer.error


@pytest.mark.parametrize(
    ("keys", "rows", "message"),
    [
        ([0, 0], [], "have keys for 2 records, the call has 1"),
        ([0], [(1, 0, b"", b"")], "has a key or a state that does not exist"),
        ([0], [(0, 4, b"", b"")], "has a key or a state that does not exist"),
        ([0], [(0, 2, b"", b"")], "the entries of state several have no items"),
    ],
)
def test_entries_that_do_not_fit(keys: list[int], rows: list[Row], message: str) -> None:
    assert message in answered(of_value(int, id), [b""], rows, keys=keys).error


def test_an_item_may_be_empty() -> None:
    @udf.map
    class Function:
        some = udf.map_state(bytes, int)

        def process(self, value: bytes) -> None:
            self.some[b""] += 1

    assert changed(Function, [b""], [(0, 0, b"", b"1")]) == [change(b"2")]


def test_changes_on_the_wire() -> None:
    changes = [(3, 1, b"x", b"a", 0), (0, 254, b"", None, 0), (1, 0, b"", b"", 7)]
    collected = collected_of(changes)
    assert unpack_changes(pack_changes(collected, have_items=True)) == changes
    message = udf_pb2.StateChanges.FromString(pack_changes(collected, have_items=True))
    assert list(message.keys) == [3, 0, 1]
    assert list(message.expires_us) == [0, 0, 7]
    assert message.deleted == b"\0\1\0"
    plain = udf_pb2.StateChanges.FromString(pack_changes(collected_of([(0, 0, b"", b"a", 0)]), have_items=False))
    assert not plain.HasField("items")
    assert not plain.deleted
    assert not plain.expires_us
    assert pack_changes(Changes(), have_items=True) == b""
    added, all_at_once = collected_of([(2, 5, b"", b"a", 0), (4, 5, b"", None, 0)]), Changes()
    all_at_once.add_all([2, 4], 5, [b"a", None])
    assert pack_changes(all_at_once, have_items=True) == pack_changes(added, have_items=True)


def collected_of(changes: list[Change]) -> Changes:
    collected = Changes()
    for change in changes:
        collected.add(*change)
    return collected


def test_too_large_an_answer_says_so() -> None:
    sealed = udf_pb2.SealedMapAnswer(call_id=1, changes=b"a" * (64 * 2**20 + 1))
    (part,) = encode_map(sealed)
    assert "the outputs and states of one call came to" in udf_pb2.SealedMapResponse.FromString(part).answer.error
