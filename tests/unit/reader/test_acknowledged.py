"""What a lane holds of messages that it has to acknowledge."""

from __future__ import annotations

import pytest

from millstream import codes
from millstream.errors import RetryLaterError
from millstream_connectors.shared.acknowledged import AcknowledgedInbox, AcknowledgedMessage


def message(n: int, size: int = 1) -> AcknowledgedMessage:
    return AcknowledgedMessage(b"x" * size, n, 0, f"m{n}")


def tags(messages: object) -> list[int]:
    return [item.tag for item in messages]  # type: ignore[attr-defined]


@pytest.mark.guarantee("I1")
def test_messages_are_acknowledged_once_they_are_committed_and_not_before() -> None:
    inbox = AcknowledgedInbox(7, 10)
    for n in range(5):
        inbox.put(message(n))
    assert tags(inbox.take(3, 1 << 20)) == [0, 1, 2]
    assert inbox.given == 10
    inbox.committed(7)
    assert not inbox.done
    inbox.committed(9)
    assert tags(inbox.done) == [0, 1]
    assert tags(inbox.unacknowledged()) == [0, 1, 2, 3, 4]
    inbox.acknowledged(2)
    inbox.committed(9)
    assert (tags(inbox.done), tags(inbox.unacknowledged())) == ([], [2, 3, 4])


async def test_room_is_bounded_by_number_and_by_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(AcknowledgedInbox, "bytes_max", 10_000)
    inbox = AcknowledgedInbox(0, 3)
    inbox.put(message(0, 9000))
    await inbox.room()
    inbox.put(message(1, 2000))
    assert inbox.full
    inbox.take(1, 1 << 20)
    inbox.committed(1)
    assert inbox.held == 2
    inbox.acknowledged(1)
    assert inbox.held == 1
    await inbox.room()
    for n in (2, 3):
        inbox.put(message(n))
    assert inbox.full
    inbox.lose(RetryLaterError(codes.TARGET_AWAY, "away"))
    await inbox.room()


def test_a_read_keeps_to_its_limits_and_gives_one_at_least() -> None:
    inbox = AcknowledgedInbox(0, 10)
    for n in range(4):
        inbox.put(message(n, 1000))
    assert tags(inbox.take(10, 2500)) == [0, 1]
    assert tags(inbox.take(10, 1)) == [2]
    assert tags(inbox.take(10, 2500)) == [3]
    assert tags(inbox.take(10, 2500)) == []
