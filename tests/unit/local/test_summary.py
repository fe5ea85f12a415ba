"""The conservation account: it balances exactly or says where it does not."""

import pytest

from millstream.account import Account
from millstream.record import BufferId, LaneId
from millstream.spec.graph import Graph
from millstream.spec.models import Pipeline
from millstream.wire.ledger.v1 import mark_pb2
from millstream_runner.local.summary import Summary, summarize, summary_lines
from tests.unit.local.pipelines import small

Marks = dict[LaneId, mark_pb2.Mark]
IN_0, IN_1 = LaneId("in", "source", 0), LaneId("in", "source", 1)
MAP, OUT, DEAD = LaneId("map", "in-map", 0), LaneId("out", "map-out", 0), LaneId("dead", "map-dead-dead-letter", 0)


def mark(account: Account, ended: bool = True, **written: int) -> mark_pb2.Mark:
    return mark_pb2.Mark(
        ended=ended,
        account=account.to_message(),
        written=[mark_pb2.Written(edge=edge.replace("_", "-"), records=count) for edge, count in written.items()],
    )


def finished() -> Marks:
    """10 records in; 6 mapped, 2 filtered, 1 dropped, 1 dead-lettered."""
    return {
        IN_0: mark(Account(inputs=6, processed=6), in_map=6),
        IN_1: mark(Account(inputs=4, processed=4, late=2), in_map=4),
        MAP: mark(
            Account(inputs=10, processed=6, filtered=2, dead_lettered=1, dropped={"too old": 1}),
            map_out=6,
            map_dead_dead_letter=1,
        ),
        OUT: mark(Account(inputs=6, processed=6)),
        DEAD: mark(Account(inputs=1, processed=1)),
    }


def checked(marks: Marks, **waiting: int) -> Summary:
    counts = {BufferId(edge.replace("_", "-"), 0): count for edge, count in waiting.items()}
    return summarize(small().graph, marks, counts)


@pytest.mark.guarantee("I2")
def test_a_finished_pipeline_balances() -> None:
    summary = checked(finished(), in_map=0, map_out=0, map_dead_dead_letter=0)
    assert summary.balanced
    assert summary.ended
    text = "\n".join(summary_lines(summary))
    assert "BALANCED" in text
    assert "NOT" not in text
    assert "map: 1 dropped: too old" in text


def test_what_was_left_out_as_late_is_told_apart_from_what_was_only_old() -> None:
    old, dropped, diverted = Account(late=235), Account(dropped={"late": 3, "failed": 4}), Account(diverted=65)
    old.add(dropped)
    old.add(diverted)
    assert (old.late, old.left_out_late) == (235, 68)
    head, first, *_ = summary_lines(checked(finished(), in_map=0, map_out=0, map_dead_dead_letter=0))
    assert head.split()[-2:] == ["BELOW-WATERMARK", "LATE"]
    # Only a reduce leaves records out for their time.
    assert first.split()[-1] == "2"


@pytest.mark.guarantee("I2")
def test_an_input_that_is_not_accounted_for_is_named() -> None:
    marks = finished()
    marks[MAP].account.filtered -= 1
    summary = checked(marks)
    assert summary.differences == ["lane map/in-map.0: 10 inputs, but 9 accounted for"]
    assert "NOT BALANCED" in "\n".join(summary_lines(summary))


@pytest.mark.guarantee("I2")
def test_records_that_were_written_and_neither_read_nor_waiting_are_named() -> None:
    marks = finished()
    marks[OUT] = mark(Account(inputs=4, processed=4), ended=False)
    assert checked(marks, map_out=2).balanced
    assert checked(marks, map_out=2).edges[1].waiting == 2
    assert checked(marks, map_out=1).differences == ["buffer map-out.0: 6 records written, but 4 read and 1 waiting"]


@pytest.mark.guarantee("I2")
def test_more_read_than_written_is_named_even_without_a_count() -> None:
    marks = finished()
    marks[OUT] = mark(Account(inputs=7, processed=7))
    assert checked(marks).differences == ["buffer map-out.0: 7 records read, but only 6 written"]


def test_a_pipeline_that_has_stored_nothing_balances_and_has_not_ended() -> None:
    summary = checked({})
    assert summary.balanced
    assert not summary.ended


def test_a_narrow_terminal_gets_a_table_without_the_columns_that_say_nothing() -> None:
    marks = finished()
    wide = summary_lines(checked(marks))
    table = wide[: wide.index("map: 1 dropped: too old")]
    assert summary_lines(checked(marks), max(map(len, table))) == wide
    # What is not zero stays, however narrow it is.
    narrow = summary_lines(checked(marks), 80)[:7]
    assert max(map(len, narrow)) <= 80
    assert narrow[0].split() == ["DEAD-", "BELOW-"]
    assert narrow[1].split()[-5:] == ["FILTERED", "LETTERED", "DROPPED", "WRITTEN", "WATERMARK"]
    assert narrow[3].split()[-7:] == ["10", "6", "2", "1", "1", "7", "0"]
    assert narrow[6] == "columns left out because they contain only zeros: LATE"
    del marks[MAP], marks[OUT], marks[DEAD], marks[IN_1]
    empty = summary_lines(checked(marks), 60)
    assert empty[0].split() == ["VERTEX", "TYPE", "INPUT", "PROCESSED", "DEAD-LETTERED", "WRITTEN"]
    assert " ".join(empty[5:7]).split()[-4:] == ["FILTERED,", "DROPPED,", "BELOW-WATERMARK,", "LATE"]


@pytest.mark.guarantee("I2")
def test_what_the_mark_of_a_chain_keeps_for_its_sink_waits_on_the_edge_to_it() -> None:
    vertices = [{"name": "in", "source": {"generator": {"records": 10}}}, {"name": "out", "sink": {"blackhole": {}}}]
    spec = {"vertices": vertices, "edges": [{"from": "in", "to": "out", "chain": True}]}
    head = {"apiVersion": "millstream.io/v1alpha1", "kind": "Pipeline", "metadata": {"name": "chained"}}
    graph = Graph.of(Pipeline.model_validate({**head, "spec": spec}))
    one = mark(Account(inputs=10, processed=10), ended=False, in_out=10)
    one.members.add(vertex="out", edge="in-out", account=Account(inputs=4, processed=4).to_message())
    assert summarize(graph, {IN_0: one}, {}).differences == [
        "buffer in-out.0: 10 records written, but 4 read and 0 waiting"
    ]
    one.undelivered_records = 6
    summary = summarize(graph, {IN_0: one}, {})
    assert summary.balanced
    assert "edge in-out: 6 waiting records" in summary_lines(summary)
