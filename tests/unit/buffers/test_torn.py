"""A batch that was stored in part, and a server that is restarted before any of the questions about it."""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from millstream import codes
from millstream.buffers.jetstream.sending import BATCH_COMMIT, BATCH_ID, BATCH_SEQUENCE
from millstream.buffers.jetstream.torn import TornEnds
from millstream.errors import DamageError

STORED_AT = datetime(2026, 1, 1, tzinfo=UTC)
TORN, WHOLE = 3, 5
"""The stream's last sequence with a part of the batch, and with all of it."""
QUESTIONS = 5
"""Questions of one look at a batch that stays torn, and more."""


class Server:
    """Restarted before question number `restarted_before`, which completes the batch or does not."""

    def __init__(self, *, restarted_before: int, completes: bool) -> None:
        self._restarted_before = restarted_before
        self._completes = completes
        self._questions = 0

    async def last_stored(self) -> int:
        return WHOLE if self._restarted() and self._completes else TORN

    async def get(self, request: Mapping[str, object]) -> dict[str, Any]:
        sequence = request["seq"]
        self._restarted()
        lines = [f"{BATCH_ID}: x", f"{BATCH_SEQUENCE}: {sequence}", *([f"{BATCH_COMMIT}: 1"] * (sequence == WHOLE))]
        headers = "\r\n".join(["NATS/1.0", *lines, "", ""])
        return {
            "subject": "p-v.in-v.0.d.v-a.0",
            "seq": sequence,
            "time": f"{STORED_AT:%Y-%m-%dT%H:%M:%S}Z",
            "hdrs": b64encode(headers.encode()).decode(),
        }

    async def started(self) -> datetime:
        return STORED_AT + timedelta(hours=1 if self._restarted() else -1)

    def _restarted(self) -> bool:
        """Whether it was restarted before this question."""
        self._questions += 1
        return self._questions > self._restarted_before


def ends_of(server: Server) -> TornEnds:
    return TornEnds("p-v", server.last_stored, server.get, server.started)


@pytest.mark.guarantee("I10")
@pytest.mark.parametrize("restarted_before", range(QUESTIONS))
async def test_a_batch_that_a_restart_completes_is_no_damage_whenever_it_comes(restarted_before: int) -> None:
    await ends_of(Server(restarted_before=restarted_before, completes=True)).wait("a test")


@pytest.mark.guarantee("I10")
@pytest.mark.parametrize("restarted_before", range(QUESTIONS))
async def test_a_batch_that_a_restart_does_not_complete_is_damage(restarted_before: int) -> None:
    with pytest.raises(DamageError) as caught:
        await ends_of(Server(restarted_before=restarted_before, completes=False)).wait("a test")
    assert caught.value.code == codes.COMMIT_TORN
