"""The stage of a source without a transformer: it holds back records beyond the bound of event times.

Above it: the source's lane. Below it: the bound. A transformer applies the bound itself, to its outputs.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from millstream import codes
from millstream.account import Account
from millstream.dead_letter import headers_of
from millstream.errors import UserError
from millstream.frame import Frame
from millstream.naming import WITH_VALUES, Naming
from millstream.retry import OnFailure
from millstream.watermark.future import DROPPED, FutureBound
from millstream_udf import columns
from millstream_vertex.stage import Stage, StageInput, StageResult


class EventTimes(Stage):
    """Passes on the records within the bound, and handles the others as `onFuture` says."""

    waits = False

    def __init__(self, bound: FutureBound | None, where: str, naming: Naming = WITH_VALUES) -> None:
        """`bound`: None if every event time is accepted. `where` names the pipeline and the lane in dead letters."""
        self._bound = bound
        self._where = where
        self._naming = naming

    async def on_frame(self, given: StageInput) -> StageResult:
        """Raises `UserError` for a record beyond the bound if `onFuture` is `stop`."""
        frame, bound = given.frame, self._bound
        beyond = bound.beyond(frame) if bound is not None else []
        if bound is None or not beyond:
            return StageResult(Account(inputs=frame.records, processed=frame.records, outputs=frame.records), frame)
        times_us = frame.event_times_us()
        if bound.on_future is OnFailure.STOP:
            named = self._naming.of(frame, beyond[0], given.origin)
            raise UserError(codes.EVENT_TIME_AHEAD, bound.stopped(times_us[beyond[0]], named))
        result = StageResult(Account(inputs=frame.records))
        if bound.on_future is OnFailure.DROP:
            result.account.drop(DROPPED, len(beyond))
        else:
            result.account.dead_lettered = len(beyond)
            result.dead_letters = self._dead_letters(bound, frame.take(beyond), given.origin.source_position)
        bound.held_back(len(beyond), times_us[beyond[0]])
        kept: Sequence[int] = sorted(set(range(frame.records)).difference(beyond))
        if kept:
            result.frame, result.parents = frame.take(kept), kept
            result.account.processed = result.account.outputs = len(kept)
        return result

    def _dead_letters(self, bound: FutureBound, part: Frame, position: str) -> Frame:
        headers = [
            {**known, **headers_of(bound.reason(time_us), "", self._where, position=position)}
            for known, time_us in zip(part.headers(), part.event_times_us(), strict=True)
        ]
        return replace(part, headers_column=columns.pack_headers(headers))
