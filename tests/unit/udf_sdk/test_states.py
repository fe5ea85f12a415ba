"""What a function remembers for each key: declarations, changes, outcomes."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any, ClassVar

import pytest

import millstream_udf as udf
from millstream_udf.defining import define
from millstream_udf.testing import KeptStates, run


@dataclass
class Profile:
    name: str = ""
    visits: list[int] = field(default_factory=list)


@udf.map
class Sessions:
    total = udf.value(int, default=0)
    profile = udf.value(Profile)
    tags = udf.value(dict, default={"seen": []})
    seen = udf.map_state(str, int)
    last = udf.list_state(str, max_items=3)
    clicks = udf.counter()

    def process(self, record: udf.Record[dict[str, Any]]) -> dict[str, Any]:
        order = record.value
        self.total += order["amount"]
        profile = self.profile or Profile(record.keys[0])
        profile.visits.append(order["amount"])
        self.profile = profile
        self.tags["seen"].append(order["amount"])
        self.seen[str(order["amount"])] = self.total
        self.last.append(str(order["amount"]))
        self.clicks += 1
        return {"total": self.total, "clicks": self.clicks.value, "last": list(self.last)}


def record(key: str, value: Any, event_time: int = 0) -> udf.Record[Any]:
    return udf.Record(json.dumps(value).encode(), event_time, keys=(key,))


def amounts(key: str, *amounts: int) -> list[udf.Record[Any]]:
    return [record(key, {"amount": amount}) for amount in amounts]


def test_records_of_a_key_see_each_other_in_order_and_between_calls() -> None:
    first = run(Sessions, [*amounts("ada", 1, 2), *amounts("bob", 10), *amounts("ada", 3)])
    assert [one["total"] for one in first.objects(dict)] == [1, 3, 10, 6]
    assert first.states is not None
    ada = first.states["ada"]
    assert ada == {
        "total": 6,
        "profile": Profile("ada", [1, 2, 3]),
        "tags": {"seen": [1, 2, 3]},
        "seen": {"1": 1, "2": 3, "3": 6},
        "last": ["1", "2", "3"],
        "clicks": 3,
    }
    again = run(Sessions, amounts("ada", 4), states=first.states)
    assert again.objects(dict) == [{"total": 10, "clicks": 4, "last": ["2", "3", "4"]}]
    assert set(first.states) == {"ada", "bob"}
    assert first.states["bob"]["total"] == 10


def test_states_set_before() -> None:
    results = run(Sessions, amounts("ada", 4), states={"ada": {"total": 5, "last": ["a", "b", "c"], "clicks": 7}})
    assert results.objects(dict) == [{"total": 9, "clicks": 8, "last": ["b", "c", "4"]}]
    kept = KeptStates(Sessions, {("ada",): {"total": 1}})
    kept["bob"] = {"seen": {"x": 1}}
    del kept["ada"]
    assert dict(kept) == {"bob": {"seen": {"x": 1}}}
    assert kept["ada"]["total"] == 0
    assert kept["ada"]["profile"] is None
    with pytest.raises(KeyError, match="there is no state totl; there are total, profile"):
        kept["ada"]["totl"]
    with pytest.raises(TypeError, match="upper has no states"):
        run(bytes.upper, [b"a"], states={})


class _Failing:
    """Does to its states what the record says, and then fails as it says."""

    total = udf.value(int, default=0)
    tags = udf.value(dict, default={})
    kept = udf.value(list, default=[])
    seen = udf.map_state(str, list)
    last = udf.list_state(dict)
    clicks = udf.counter()

    def process(self, record: udf.Record[str]) -> Any:
        self.total += 1
        self.tags[record.value] = 1
        self.kept.append(record.value)
        self.seen.setdefault("all", []).append(record.value)
        self.last.append({"value": record.value})
        self.last[0]["changed"] = record.value
        self.clicks.add()
        match record.value:
            case "error":
                raise OSError("away")
            case "returned":
                return OSError("away")
            case "retry":
                raise udf.Retry(2)
            case "dead":
                raise udf.DeadLetter("poison")
            case "drop":
                raise udf.Drop("unwanted")
            case "fallback":
                raise udf.Fallback
            case "output":
                return [b"a", 7]
            case "message":
                return udf.Message(b"a", headers={"a": 1})  # type: ignore[dict-item]  # meant
            case "generator":
                return self.outputs()
            case "exit":
                raise SystemExit
        return str(self.total)

    def outputs(self) -> Iterator[bytes]:
        self.total += 100
        yield b"a"
        raise ValueError("in the middle")


UNCHANGED = {
    "total": 1,
    "tags": {"ok": 1},
    "kept": ["ok"],
    "seen": {"all": ["ok"]},
    "last": [{"value": "ok", "changed": "ok"}],
    "clicks": 1,
}


def texts(key: str, *values: str) -> list[udf.Record[Any]]:
    return [record(key, value) for value in values]


@udf.map(decode=json.loads)
class Failing(_Failing):
    pass


@pytest.mark.parametrize(
    ("how", "result"),
    [
        ("error", "error"),
        ("returned", "error"),
        ("retry", "retry"),
        ("fallback", "error"),
        ("output", "error"),
        ("message", "error"),
        ("generator", "error"),
        ("exit", "error"),
    ],
)
def test_a_record_that_fails_leaves_nothing_and_holds_its_key_up(how: str, result: str) -> None:
    results = run(Failing, [*texts("ada", "ok", how, "later", "last"), *texts("bob", "ok")])
    assert [(one.index, one.result) for one in results.outcomes] == [(1, result), (2, "held up"), (3, "held up")]
    assert results.values == [b"1", b"1"]
    assert results.parents == [0, 4]
    assert results.states is not None
    assert results.states["ada"] == UNCHANGED
    assert results.states["bob"] == UNCHANGED


@pytest.mark.parametrize(("how", "result"), [("dead", "dead letter"), ("drop", "drop")])
def test_a_record_that_is_settled_leaves_nothing_and_later_ones_go_on(how: str, result: str) -> None:
    results = run(Failing, texts("ada", how, "ok"))
    assert [(one.index, one.result) for one in results.outcomes] == [(0, result)]
    assert results.values == [b"1"]
    assert results.states is not None
    assert results.states["ada"] == UNCHANGED


def test_a_misfit_leaves_nothing_and_later_ones_go_on() -> None:
    results = run(Sessions, [*amounts("ada", 1), udf.Record(b"no json", keys=("ada",)), *amounts("ada", 2)])
    assert [(one.index, one.result, one.code) for one in results.outcomes] == [(1, "dead letter", "MS-3005")]
    assert [one["total"] for one in results.objects(dict)] == [1, 3]


@udf.map
class Generated:
    total = udf.value(int, default=0)

    def process(self, value: bytes) -> Iterator[str]:
        for _ in range(int(value)):
            self.total += 1
            yield f"{self.total}"


def test_outputs_of_a_generator_are_made_within_the_record() -> None:
    results = run(Generated, [b"2", b"1", b"0"])
    assert results.values == [b"1", b"2", b"3"]
    assert results.parents == [0, 0, 1]
    assert results.states is not None
    assert results.states[()] == {"total": 3}


def test_an_output_is_what_it_was_when_its_record_ended() -> None:
    headers: dict[str, Any] = {}

    @udf.map
    class Reusing:
        total = udf.value(int, default=0)

        def process(self, value: bytes) -> udf.Message:
            self.total += 1
            headers["value"] = value if value != b"bad" else 7
            return udf.Message(value, headers=headers)

    results = run(Reusing, [b"a", b"bad"])
    assert [message.headers for message in results.messages] == [{"value": b"a"}]
    assert [(one.index, one.result) for one in results.outcomes] == [(1, "error")]
    assert results.states is not None
    assert results.states[()]["total"] == 1


@udf.map
class Deleting:
    total = udf.value(int, default=3)
    tags = udf.value(list[int], default=[])
    plain = udf.value(dict)
    seen = udf.map_state(int, str)
    last = udf.list_state(int)
    clicks = udf.counter()

    def process(self, value: bytes) -> str | None:
        match value:
            case b"delete":
                del self.total, self.tags, self.plain, self.seen, self.last, self.clicks
            case b"none":
                self.plain = None
            case b"again":
                del self.total
                self.total += 1
                del self.tags
                self.tags.append(1)
                del self.clicks
                self.clicks -= 2
            case b"refused":
                self.last = [1]  # type: ignore[assignment]  # meant
        return f"{self.total} {self.tags} {self.plain} {dict(self.seen)} {list(self.last)} {self.clicks.value}"


FULL = {"total": 9, "tags": [9], "plain": {"a": 9}, "seen": {1: "a"}, "last": [9], "clicks": 9}


def test_deleting_is_going_back_to_the_default() -> None:
    results = run(Deleting, [b"delete", b"look"], states={(): FULL})
    assert results.values == [b"3 [] None {} [] 0"] * 2
    assert results.states is not None
    assert results.states[()] == {}
    results = run(Deleting, [b"none"], states={(): FULL})
    assert "plain" not in results.states[()]  # type: ignore[index]  # it has states
    results = run(Deleting, [b"again"], states={(): FULL})
    assert results.values == [b"4 [1] {'a': 9} {1: 'a'} [9] -2"]
    assert results.states is not None
    assert results.states[()] == FULL | {"total": 4, "tags": [1], "clicks": -2}


def test_collections_are_not_assigned() -> None:
    (outcome,) = run(Deleting, [b"refused"]).outcomes
    assert "state last cannot be assigned: change it with its methods, or delete it" in outcome.reason


@udf.map
class Collections:
    seen = udf.map_state(int, list)
    last = udf.list_state(list)

    def process(self, value: bytes) -> str:
        seen, last = self.seen, self.last
        seen |= {10: [1], 9: [2], -1: [3]}
        seen[9].append(4)
        assert 10 in seen
        assert seen.get(7) is None
        assert seen.pop(10) == [1]
        with pytest.raises(KeyError):
            del seen[10]
        with pytest.raises(KeyError):
            seen[10]
        assert len(seen) == 2
        last += [[1], [2], [3], [4]]
        last.extend([[5]])
        last[1].append(9)
        last[0] = [0]
        assert last.pop(0) == [0]
        assert last.pop() == [5]
        del last[1]
        assert last[-1] == [4]
        assert last[:1] == [[2, 9]]
        assert [4] in last
        with pytest.raises(IndexError):
            last[2]
        return f"{list(seen)} {seen!r} {last!r} {len(last)}"


def test_collections() -> None:
    results = run(Collections, [b""])
    assert results.values == [b"[-1, 9] StateMap({-1: [3], 9: [2, 4]}) StateList([[2, 9], [4]]) 2"]
    assert results.states is not None
    assert results.states[()] == {"seen": {-1: [3], 9: [2, 4]}, "last": [[2, 9], [4]]}


def process_plain(value: bytes, state: udf.State) -> str:
    match value:
        case b"fail":
            state["name"] = "lost"
            state.incr_counter("records")
            raise ValueError
        case b"delete":
            state.delete_state("name")
            state.delete_state("nothing")
            del state["raw"]
    if value == b"put":
        state["name"] = {"a": [1]}
        state.put_state("raw", b"\xff\0")
    elif "name" in state:
        state["name"]["a"].append(2)
    count = state.incr_counter("records")
    state.incr_counter("other", 5)
    assert state.get_counter("none") == 0
    return f"{count} {sorted(state)} {state.get('name')} {state.get_state('raw')!r} {state.get('none', 7)} {len(state)}"


def test_a_plain_function() -> None:
    results = run(process_plain, [b"put", b"look", b"delete"])
    assert results.values == [
        b"1 ['name', 'raw'] {'a': [1]} b'\\xff\\x00' 7 2",
        b"2 ['name', 'raw'] {'a': [1, 2]} b'\\xff\\x00' 7 2",
        b"3 [] None None 7 0",
    ]
    assert results.states is not None
    assert results.states[()] == {"counters": {"other": 15, "records": 3}}
    failed = run(process_plain, [b"put", b"fail", b"put"])
    assert [one.result for one in failed.outcomes] == ["error", "held up"]
    assert failed.states is not None
    assert failed.states[()]["state"] == {"name": {"a": [1]}}
    assert failed.states[()]["counters"]["records"] == 1


def with_both(value: bytes, context: udf.Context, state: udf.State) -> str:
    return f"{context.attempt} {state.incr_counter('n')}"


def test_context_and_state_in_any_order() -> None:
    assert run(with_both, [b"a", b"b"], attempt=3).values == [b"3 1", b"3 2"]
    definition = define(with_both, "f")
    assert definition.arguments == ("context", "state")
    assert [(spec.name, spec.message().codec) for spec in definition.states] == [
        ("state", "json"),
        ("bytes", "bytes"),
        ("counters", "json"),
    ]


@udf.map
class Stale:
    total = udf.value(list, default=[])
    seen = udf.map_state(str, int)
    found: ClassVar[list[Any]] = []

    def process(self, value: bytes) -> None:
        self.found.extend([self.total, self.seen])


def test_a_state_belongs_to_its_record() -> None:
    with pytest.raises(
        udf.StateError, match="state total can only be used while a record is processed: not in __init__, setup"
    ):
        Stale().process(b"")
    run(Stale, [b""])
    with pytest.raises(RuntimeError, match="state seen can only be used"):
        Stale.found[1]["a"] = 1
    with pytest.raises(RuntimeError, match="state seen can only be used"):
        len(Stale.found[1])

    @udf.map
    class InSetup:
        total = udf.value(int, default=0)

        def setup(self, context: udf.Context) -> None:
            self.total = 1

        def process(self, value: bytes) -> None: ...

    with pytest.raises(RuntimeError, match="state total can only be used"):
        run(InSetup, [b""])


def test_a_state_of_another_class() -> None:
    class Other:
        count = udf.counter()
        more = udf.value(int)

    @udf.map
    class Using:
        total = udf.value(int)
        other = Other()

        def process(self, value: bytes) -> None:
            if value == b"read":
                self.other.count.add()
            self.other.more = 1

    for value in (b"read", b"assign"):
        (outcome,) = run(Using, [value]).outcomes
        assert "is not one of the function that runs, which has those that its class" in outcome.reason


def test_an_object_that_was_kept_does_not_change_what_is_remembered() -> None:
    @udf.map
    class Keeps:
        total = udf.value(list[int], default=[])
        last: Any = None

        def process(self, value: bytes) -> str:
            if self.last is not None:
                self.last.append(99)
            self.last = self.total
            self.total.append(1)
            return str(self.total)

    assert run(Keeps, [b"", b""]).values == [b"[1]", b"[1, 1]"]


def test_what_was_written_before_1970_expires_before_1970() -> None:
    @udf.map
    class Expiring:
        seen = udf.counter(ttl=timedelta(seconds=10))

        def process(self, record: udf.Record) -> str:
            return str(self.seen.add())

    second = 1_000_000
    states = run(Expiring, [udf.Record(b"", -100 * second, keys=("k",))]).states
    assert states is not None
    assert states["k"].expires_us("seen") == -90 * second
    assert run(Expiring, [udf.Record(b"", -99 * second, keys=("k",))], states=states).values == [b"2"]
    late = run(Expiring, [udf.Record(b"", -80 * second, keys=("k",))], states=states, watermark_us=-89 * second)
    assert late.values == [b"1"]


def test_ttl_by_event_time_and_by_the_present() -> None:
    @udf.map
    class Expiring:
        total = udf.value(int, default=0, ttl=timedelta(seconds=10))
        seen = udf.map_state(str, int, ttl=timedelta(seconds=5), clock="processing")

        def process(self, record: udf.Record[str]) -> str:
            if record.value == "write":
                self.total += 1
                self.seen["a"] = 1
            return f"{self.total} {len(self.seen)}"

    decoded = udf.map(decode=json.loads)(Expiring)
    second = 1_000_000
    first = run(decoded, [record("ada", "write", 7 * second), record("ada", "write", 3 * second)], now_us=100 * second)
    states = first.states
    assert states is not None
    assert states["ada"].expires_us("total") == 17 * second
    assert states["ada"].expires_us("seen", "a") == 105 * second
    # A late record does not make it older, also in a later call; reading does not make it younger.
    run(decoded, [record("ada", "write", second)], states=states, now_us=101 * second)
    run(decoded, [record("ada", "read", 90 * second)], states=states, now_us=102 * second)
    assert states["ada"].expires_us("total") == 17 * second
    assert states["ada"].expires_us("seen", "a") == 106 * second
    alive = run(decoded, [record("ada", "read")], states=states, now_us=105 * second, watermark_us=17 * second - 1)
    assert alive.values == [b"3 1"]
    expired = run(decoded, [record("ada", "read")], states=states, now_us=106 * second, watermark_us=17 * second)
    assert expired.values == [b"0 0"]
    assert "ada" not in states
