"""Moves what the marks of lanes say to other lanes of a changed pipeline, between two runs.

    a chain is separated:  its marks ─► marks of new lanes: accounts, totals, watermarks ─► noted ─► out of its marks
    an edge is removed:    marks of its reader's lanes ─► accounts and totals ─► marks of the lanes that remain
    a map remembers now:   marks of the lanes of each edge ─► mark of the lane of all edges: positions, accounts, totals
    fewer partitions:      marks of the lanes that end ─► accounts and totals ─► mark of the first lane
                           and back, when there are more again

All of it stays in one ledger. The new lanes of a chain write to the same buffers, so their readers notice nothing, and
records may wait there. Inside a chain, records wait only for a sink, which is not separated from its chain.

Above it: a change of the pipeline, which repeats the steps if a run dies between them. Below it: the ledgers.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Collection, Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

from millstream.account import Account
from millstream.clock import START_OF_TIME_US
from millstream.durable import step
from millstream.ledger.protocol import Broker, Ledger, StoredMark
from millstream.ledger.rewriting import rewritten
from millstream.plan.plan import Plan
from millstream.record import ALL_INPUTS, LaneId, changelog_of, edit_results_of
from millstream.watermark.store import OtStores, forget
from millstream.wire.ledger.v1 import mark_pb2


class _Chain(NamedTuple):
    """The lanes of a vertex in whose marks others follow that now have lanes of their own."""

    ledger: Ledger
    marks: Mapping[LaneId, StoredMark]
    own: frozenset[str]
    """The vertices that still run in these lanes."""


async def separate(
    plan: Plan,
    broker: Broker,
    stores: OtStores,
    owner: str,
    note: Callable[[Collection[str]], None],
    *,
    divided: Collection[str],
) -> None:
    """Move what marks of chains say about vertices that have lanes of their own in `plan` to those lanes.

    `note` gets the vertices whose lanes have their marks, and has to be durable on return; after that, the marks of the
    chain are shortened. `divided`: those of which an earlier call noted it before it was interrupted.
    """
    chains = [chain async for chain in _chains(plan, broker)]
    done = set(divided)
    for chain in chains:
        for lane, mark in _divided(plan, chain):
            if lane.vertex in divided:
                continue
            with step("chain.divide", lane.vertex):
                await _replace(chain.ledger, lane, mark, owner)
            done.add(lane.vertex)
    note(done)
    for chain in chains:
        for lane, stored in chain.marks.items():
            # What was published says more than the rest of the mark does. The lane publishes it again.
            await forget(await stores.store(lane.vertex), lane)
            with step("chain.shorten", lane.vertex):
                await _replace(chain.ledger, lane, _shortened(plan, stored.mark, chain.own), owner)


async def take_in(plan: Plan, broker: Broker, removed: Mapping[str, str], owner: str) -> None:
    """Add what the lanes of removed edges have done to the lanes of the edges that their vertices read now, which write
    to the same buffers. `removed`: the vertex that read each edge. What was added before is not added again."""
    for edge, vertex in removed.items():
        ledger = await broker.existing_ledger(vertex) if vertex in plan.edges_in else None
        if ledger is None or plan.vertex(vertex).definition.lane_input is not None:
            continue
        into = plan.edges_in[vertex][0].name
        # An earlier change that was interrupted may have chosen another lane, whose edge may have been removed since.
        others = [one.name for one in plan.edges_in[vertex]]
        others += [one for one, reader in removed.items() if reader == vertex and one != edge]
        for partition in range(plan.vertex(vertex).partitions):
            former = await ledger.mark(LaneId(vertex, edge, partition))
            marks = {one: await ledger.mark(LaneId(vertex, one, partition)) for one in others}
            members = [one for stored in marks.values() if stored is not None for one in stored.mark.members]
            if former is None or any(one.edge == edge for one in members):
                continue
            lane, now = LaneId(vertex, into, partition), marks[into]
            mark = now.mark if now is not None else mark_pb2.Mark(watermark_us=START_OF_TIME_US)
            mark.members.add(vertex=vertex, edge=edge, account=former.mark.account)
            _add_members(mark, former.mark.members)
            _add_written(mark, former.mark.written)
            with step("lane.take_in", vertex):
                await _replace(ledger, lane, mark, owner)


async def gather(plan: Plan, broker: Broker, gathered: Mapping[str, Sequence[str]], owner: str) -> None:
    """Let the lane of all edges continue where the lanes of each edge were. `gathered`: the edges that each vertex has
    read in lanes of their own. What was gathered before is not gathered again."""
    for vertex, edges in gathered.items():
        ledger = await broker.existing_ledger(vertex) if vertex in plan.edges_in else None
        if ledger is None or vertex not in plan.order:
            continue
        for lane in plan.lanes_of(vertex):
            before = [(edge, await ledger.mark(LaneId(vertex, edge, lane.partition))) for edge in edges]
            former = {edge: stored.mark for edge, stored in before if stored is not None}
            now = await ledger.mark(lane)
            if not former or (now is not None and now.mark.inputs):
                continue
            # Nothing else is done in a lane of a chain before it has been separated, and that begins with no mark.
            mark = mark_pb2.Mark(
                watermark_us=min(one.watermark_us for one in former.values()),
                ended=all(one.ended for one in former.values()),
            )
            if added := max(one.continued.sequence for one in former.values()):
                # Ids of records do not come again.
                mark.continued.sequence = added
            for edge, one in former.items():
                _add_input(mark, edge, one)
            with step("lane.gather", vertex):
                await _replace(ledger, lane, mark, owner)


def _add_input(mark: mark_pb2.Mark, edge: str, former: mark_pb2.Mark) -> None:
    """Add what the lane of one edge has done to the mark of the lane of all edges."""
    mark.inputs.add(
        edge=edge,
        sequence=former.sequence,
        record_index=former.record_index,
        records=former.account.inputs,
        bytes=former.account.input_bytes,
        read=former.read,
    )
    account = Account.from_message(mark.account)
    account.add(Account.from_message(former.account))
    mark.account.CopyFrom(account.to_message())
    mark.accepted.extend(former.accepted)
    mark.given_up.extend(former.given_up)
    _add_members(mark, former.members)
    _add_written(mark, former.written)


async def count_in_first(plan: Plan, ledger: Ledger, vertex: str, former: int, owner: str) -> None:
    """Add what the lanes have done that a vertex no longer has to its first lane, and take out again what lanes had
    done that it has again. Inside the first lane, such a lane is a member whose edge is the key of the lane. `former`:
    how many partitions it has had at most. What was added or taken out before is not again."""
    partitions = plan.vertex(vertex).partitions
    first = plan.lanes_of(vertex)[0]
    chained = {edge.name for name in plan.graph.chain(vertex) for edge in plan.graph.edges_out[name] if edge.chain}
    kept = changelog_of(vertex), edit_results_of(vertex)
    for lane in (first._replace(partition=partition) for partition in range(1, max(former, partitions))):
        own = await ledger.mark(lane)
        now = await ledger.mark(first)
        if own is None:
            continue
        mark = now.mark if now is not None else mark_pb2.Mark(watermark_us=START_OF_TIME_US)
        is_counted = any(one.edge == lane.key for one in mark.members)
        if lane.partition >= partitions and not is_counted:
            mark.members.add(vertex=vertex, edge=lane.key, account=own.mark.account)
            _add_members(mark, own.mark.members)
            _add_written(mark, (_of_first(one, chained) for one in own.mark.written if one.edge not in kept))
            with step("lane.count_in", vertex):
                await _replace(ledger, first, mark, owner)
        elif lane.partition < partitions and is_counted:
            # The first lane keeps what was written and what passed through the chain. It is cleared here first: then
            # a repetition finds the member, and clears it again.
            for one in own.mark.written:
                one.records = one.bytes = 0
            del own.mark.members[:]
            with step("lane.clear", vertex):
                await _replace(ledger, lane, own.mark, owner)
            others = [one for one in mark.members if one.edge != lane.key]
            del mark.members[:]
            mark.members.extend(others)
            with step("lane.count_out", vertex):
                await _replace(ledger, first, mark, owner)


def _of_first(written: mark_pb2.Written, chained: Collection[str]) -> mark_pb2.Written:
    """What a lane has passed on inside its chain, as what the first lane has."""
    if written.edge not in chained:
        return written
    return mark_pb2.Written(edge=written.edge, records=written.records, bytes=written.bytes)


async def _chains(plan: Plan, broker: Broker) -> AsyncIterator[_Chain]:
    for vertex in plan.order:
        ledger = await broker.existing_ledger(vertex)
        if ledger is None:
            continue
        own = frozenset(plan.graph.chain(vertex))
        marks = {}
        for lane in plan.lanes_of(vertex):
            stored = await ledger.mark(lane)
            if stored is not None and any(_has_left(plan, one, own) for one in stored.mark.members):
                marks[lane] = stored
        if marks:
            yield _Chain(ledger, marks, own)


def _has_left(plan: Plan, member: mark_pb2.Member, own: frozenset[str]) -> bool:
    """Whether a vertex that followed in a chain has lanes of its own, or follows one that has."""
    if member.vertex in own or member.vertex not in plan.graph.edges_in:
        return False
    return any(edge.name == member.edge for edge in plan.graph.edges_in[member.vertex])


def _divided(plan: Plan, chain: _Chain) -> Iterator[tuple[LaneId, mark_pb2.Mark]]:
    """The marks of the new lanes."""
    made: dict[LaneId, mark_pb2.Mark] = {}
    for lane, stored in chain.marks.items():
        gone = {one.vertex: one for one in stored.mark.members if _has_left(plan, one, chain.own)}
        for vertex, member in gone.items():
            if plan.graph.head(vertex) != vertex:
                continue
            new = LaneId(vertex, plan.vertex(vertex).definition.lane_input or member.edge, lane.partition)
            was = stored.mark
            first = mark_pb2.Mark(watermark_us=was.watermark_us, ended=was.ended, target=was.target)
            if was.HasField("continued"):
                first.continued.CopyFrom(was.continued)
            mark = made.setdefault(new, first)
            if first.continued.sequence > mark.continued.sequence:
                # Ids of records do not come again.
                mark.continued.sequence = first.continued.sequence
            mark.watermark_us = min(mark.watermark_us, was.watermark_us)
            mark.ended = mark.ended and was.ended
            _add(mark, plan, vertex, gone, was.written)
            if new.input == ALL_INPUTS:
                account, read = mark.account, mark.inputs or [mark.inputs.add(edge=member.edge)]
                read[0].records, read[0].bytes = account.inputs, account.input_bytes
    yield from made.items()


def _add(
    mark: mark_pb2.Mark,
    plan: Plan,
    vertex: str,
    gone: Mapping[str, mark_pb2.Member],
    written: Iterable[mark_pb2.Written],
) -> None:
    """Add what one lane of the chain has done in a vertex and in those that follow it."""
    account = Account.from_message(mark.account)
    account.add(Account.from_message(gone[vertex].account))
    mark.account.CopyFrom(account.to_message())
    _add_members(mark, [gone[name] for name in plan.graph.chain(vertex)[1:] if name in gone])
    edges = {edge.name for name in plan.graph.chain(vertex) for edge in plan.graph.edges_out[name]}
    _add_written(mark, [one for one in written if one.edge in edges])


def _add_members(mark: mark_pb2.Mark, members: Iterable[mark_pb2.Member]) -> None:
    there = {(one.vertex, one.edge): one for one in mark.members}
    for one in members:
        same = there.get((one.vertex, one.edge))
        if same is None:
            same = there[one.vertex, one.edge] = mark.members.add(vertex=one.vertex, edge=one.edge)
        account = Account.from_message(same.account)
        account.add(Account.from_message(one.account))
        same.account.CopyFrom(account.to_message())


def _add_written(mark: mark_pb2.Mark, written: Iterable[mark_pb2.Written]) -> None:
    totals = {(one.edge, one.partition): one for one in mark.written}
    for one in written:
        total = totals.get((one.edge, one.partition))
        if total is None:
            total = totals[one.edge, one.partition] = mark.written.add(edge=one.edge, partition=one.partition)
        # `frames` numbers what this lane has written.
        total.records += one.records
        total.bytes += one.bytes


def _shortened(plan: Plan, mark: mark_pb2.Mark, own: frozenset[str]) -> mark_pb2.Mark:
    """The mark without what now belongs to other lanes."""
    gone = {one.vertex for one in mark.members if _has_left(plan, one, own)}
    edges = {edge.name for vertex in gone for edge in plan.graph.edges_out[vertex]}
    members = [one for one in mark.members if one.vertex not in gone]
    written = [one for one in mark.written if one.edge not in edges]
    shorter = mark_pb2.Mark()
    shorter.CopyFrom(mark)
    del shorter.members[:], shorter.written[:]
    shorter.members.extend(members)
    shorter.written.extend(written)
    return shorter


async def _replace(ledger: Ledger, lane: LaneId, mark: mark_pb2.Mark, owner: str) -> None:
    """Commit a mark for a lane that nothing else owns now."""
    async with rewritten(ledger, lane, owner) as now:
        mark.epoch, mark.owner = now.epoch, now.owner
        now.CopyFrom(mark)
