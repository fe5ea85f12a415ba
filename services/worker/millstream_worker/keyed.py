"""Opens the stage of a function that remembers: loads what was committed, and compares it with what it declares.

Above it: the kind of its vertex. Below it: the state of the lane, in its ledger.
"""

from __future__ import annotations

from collections.abc import Coroutine, Sequence
from typing import Any

from millstream import codes
from millstream.errors import UdfError, UserError
from millstream.missing_packages import naming_missing_packages
from millstream.spec.programs import State, Udf
from millstream.spec.protocols import FunctionKind
from millstream.udf.streams import KeyedMapStream, MapStream, TableStream
from millstream_vertex.keyed.changelog import Changelog
from millstream_vertex.keyed.image import Image, StateImage
from millstream_vertex.keyed.inbox import Inbox
from millstream_vertex.keyed.stage import KeyedStage
from millstream_vertex.keyed.state import KeyedState
from millstream_vertex.keyed.tables import Tables
from millstream_vertex.mapping import MapStage
from millstream_worker.opening import LaneOpening


def open_keyed_stage(opening: LaneOpening, settings: Udf) -> Coroutine[Any, Any, MapStage]:
    """The stage of the lane's vertex. Raises `UdfError` if the function does not fit what is stored, and `DamageError`
    if that cannot be read."""
    if settings.state is None or settings.state.store == "memory":
        return _opened(opening, settings, StateImage())
    with naming_missing_packages(f"{opening.where}: `store: disk`"):
        from millstream_vertex.keyed.disk.image import open_disk_image
        from millstream_vertex.keyed.disk.store import StoreIdentity

    async def open_on_disk() -> MapStage:
        shared, lane = opening.shared, opening.lane
        if shared.config.states_dir is None:
            raise UserError(codes.OPTIONS_CONFLICT, f"{opening.where}: `store: disk` needs --states-dir")
        place = shared.config.states_dir / lane.vertex / str(lane.partition)
        identity = StoreIdentity((await shared.ledgers.of(lane.vertex)).ledger_id, lane.key)
        image = await opening.stack.enter_async_context(open_disk_image(place, identity, opening.where))
        return await _opened(opening, settings, image)

    return open_on_disk()


async def _opened(opening: LaneOpening, settings: Udf, image: Image) -> MapStage:
    """The stage over an image that stays open until the replica ends."""
    shared, lane = opening.shared, opening.lane
    mark = opening.core.committer.mark
    kept = settings.state
    state = KeyedState(
        opening.where,
        size_max=kept.max_bytes if kept is not None else 0,
        key_size_max=kept.max_bytes_per_key if kept is not None else 0,
        image=image,
    )
    inputs = [table for table in opening.plan.tables.values() if table.vertex == lane.vertex]
    tables = Tables(opening.where, state, inputs)
    committer = opening.core.committer
    ledger, trimmer = await shared.ledgers.of(lane.vertex), await shared.ledgers.trimmer(lane.vertex)
    changelog = Changelog(lane, trimmer, lambda: committer.mark)
    # What had expired for the owner before has expired for this one.
    state.watermark_us = mark.watermark_us
    state.stored_states(mark.states.get(lane.vertex, b""))
    await changelog.load(ledger, lane, mark, state)

    def make(stream: MapStream, *arguments: Any, **options: Any) -> KeyedStage:
        keyed = fitting(opening.where, stream, kept, tables.names)
        state.declare([*keyed.states, *tables.declared()])
        tables.open()
        return KeyedStage(
            keyed,
            *arguments,
            state=state,
            changelog=changelog,
            inbox=Inbox(ledger, lane, trimmer),
            clock=shared.clock,
            by_key=kept is not None and kept.scope == "key",
            needs_keys=kept is not None and kept.scope == "key" and shared.vertex.partitions > 1,
            tables=tables,
            **options,
        )

    return await opening.map_stage("udf", FunctionKind.MAP, make=make)


def fitting(where: str, stream: MapStream, state: State | None, tables: Sequence[str]) -> KeyedMapStream:
    """The stream to a function that fits its vertex: both agree on whether there are states, and which tables. Raises
    `UdfError` if they do not."""
    states = stream.states if isinstance(stream, KeyedMapStream) else ()
    read = stream.tables if isinstance(stream, TableStream) else ()
    if state is not None and not states:
        what = "the vertex has `udf.state`, and its function declares no state. Declare one, or remove `state` from it"
    elif state is None and states:
        names = _listed([one.name for one in states])
        what = f"the function remembers {names}, and its vertex has no state. Write `state: {{}}` to its `udf`"
    elif unknown := sorted(set(read) - set(tables)):
        what = (
            f"the function reads {_listed(unknown)}, and its vertex has no such table. Write it to the `tables` of its "
            "`udf`, with an edge that brings its records"
        )
    elif not isinstance(stream, KeyedMapStream) or (tables and not _takes_tables(stream)):
        what = (
            f"the vertex has `udf.tables` ({_listed(tables)}), which the SDK of its function does not know. Use the "
            "SDK for Python of this release, or let the function read what it needs itself"
        )
    else:
        return stream
    raise UdfError(codes.STATE_MISFIT, f"{where}: {what}")


def _takes_tables(stream: MapStream) -> bool:
    return isinstance(stream, TableStream) and stream.takes_tables


def _listed(names: Sequence[str]) -> str:
    return ", ".join(f"`{name}`" for name in names)
