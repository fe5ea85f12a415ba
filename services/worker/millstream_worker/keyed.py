"""Opens the stage of a function that remembers: loads what was committed, and compares it with what it declares.

Above it: the kind of its vertex. Below it: the state of the lane, in its ledger.
"""

from __future__ import annotations

from collections.abc import Coroutine
from typing import Any

from millstream import codes
from millstream.errors import UdfError, UserError
from millstream.missing_packages import naming_missing_packages
from millstream.spec.programs import State
from millstream.spec.protocols import FunctionKind
from millstream.udf.streams import KeyedMapStream, MapStream
from millstream_vertex.keyed.changelog import Changelog
from millstream_vertex.keyed.image import Image, StateImage
from millstream_vertex.keyed.inbox import Inbox
from millstream_vertex.keyed.stage import KeyedStage
from millstream_vertex.keyed.state import KeyedState
from millstream_vertex.mapping import MapStage
from millstream_worker.opening import LaneOpening


def open_keyed_stage(opening: LaneOpening, settings: State) -> Coroutine[Any, Any, MapStage]:
    """The stage of the lane's vertex. Raises `UdfError` if the function does not fit what is stored, and `DamageError`
    if that cannot be read."""
    if settings.store == "memory":
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


async def _opened(opening: LaneOpening, settings: State, image: Image) -> MapStage:
    """The stage over an image that stays open until the replica ends."""
    shared, lane = opening.shared, opening.lane
    mark = opening.core.committer.mark
    state = KeyedState(
        opening.where,
        size_max=settings.max_bytes,
        key_size_max=settings.max_bytes_per_key,
        image=image,
    )
    committer = opening.core.committer
    ledger, trimmer = await shared.ledgers.of(lane.vertex), await shared.ledgers.trimmer(lane.vertex)
    changelog = Changelog(lane, trimmer, lambda: committer.mark)
    # What had expired for the owner before has expired for this one.
    state.watermark_us = mark.watermark_us
    state.stored_states(mark.states.get(lane.vertex, b""))
    await changelog.load(ledger, lane, mark, state)

    def make(stream: MapStream, *arguments: Any, **options: Any) -> KeyedStage:
        if not isinstance(stream, KeyedMapStream) or not stream.states:
            raise UdfError(
                codes.STATE_MISFIT,
                f"{opening.where}: the vertex has `udf.state`, and its function declares no state. Declare one, or "
                "remove `state` from the vertex",
            )
        state.declare(stream.states)
        return KeyedStage(
            stream,
            *arguments,
            state=state,
            changelog=changelog,
            inbox=Inbox(ledger, lane, trimmer),
            clock=shared.clock,
            by_key=settings.scope == "key",
            needs_keys=settings.scope == "key" and shared.vertex.partitions > 1,
            **options,
        )

    return await opening.map_stage("udf", FunctionKind.MAP, make=make)
