"""Messages over a stream socket, on both event loops: whatever the pieces in which they come."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from functools import partial

import pytest
import uvloop

from millstream_udf.message_socket import HEADER_BYTES, MessageSocket

BYTES_MAX = 1024 * 1024
TIMEOUT_S = 60
Run = Callable[[Callable[[], Awaitable[None]]], None]


@pytest.fixture(params=["asyncio", "uvloop"])
def run(request: pytest.FixtureRequest) -> Run:
    """Runs a test on an event loop of this kind."""
    factory = uvloop.new_event_loop if request.param == "uvloop" else None

    def running(test: Callable[[], Awaitable[None]]) -> None:
        async def bounded() -> None:
            async with asyncio.timeout(TIMEOUT_S):
                await test()

        with asyncio.Runner(loop_factory=factory) as runner:
            runner.run(bounded())

    return running


@asynccontextmanager
async def connected(unsent_bytes_max: int = BYTES_MAX) -> AsyncIterator[tuple[MessageSocket, socket.socket]]:
    """One end, and the plain socket at the other."""
    ours, theirs = socket.socketpair()
    _, messages = await asyncio.get_running_loop().create_connection(
        lambda: MessageSocket(BYTES_MAX, unsent_bytes_max), sock=ours
    )
    theirs.setblocking(False)
    try:
        yield messages, theirs
    finally:
        theirs.close()
        await messages.close()


@asynccontextmanager
async def pair() -> AsyncIterator[tuple[MessageSocket, MessageSocket]]:
    """Both ends."""
    loop, ends = asyncio.get_running_loop(), socket.socketpair()
    here, there = [(await loop.create_connection(lambda: MessageSocket(BYTES_MAX), sock=end))[1] for end in ends]
    try:
        yield here, there
    finally:
        await here.close()
        await there.close()


def message(data: bytes) -> bytes:
    return len(data).to_bytes(HEADER_BYTES, "little") + data


def test_a_sender_may_wait_until_the_system_has_everything(run: Run) -> None:
    async def test(waits: bool) -> None:
        # More than the system takes at once.
        size = 16 * BYTES_MAX
        async with connected(0 if waits else 2 * size) as (messages, theirs):
            sending = asyncio.create_task(messages.send(bytes(size)))
            await asyncio.sleep(0)
            await asyncio.sleep(0)
            assert sending.done() is not waits
            left = HEADER_BYTES + size
            while left:
                left -= len(await asyncio.get_running_loop().sock_recv(theirs, left))
            await sending

    run(partial(test, waits=True))
    run(partial(test, waits=False))


def test_what_has_arrived_is_not_received_after_a_stop(run: Run) -> None:
    async def test() -> None:
        async with connected() as (messages, theirs):
            await asyncio.get_running_loop().sock_sendall(theirs, message(b"a") + message(b"b"))
            assert await messages.receive() == b"a"
            assert messages.has_more
            messages.stop()
            assert await messages.receive() is None
            waiting = asyncio.create_task(messages.receive())
            assert await waiting is None

    run(test)


SIZES = (0, 1, 65_531, 65_532, 65_533, 70_000, 131_072, 3, BYTES_MAX, 0, 7)


def test_messages_of_any_size_arrive_whole_and_in_order(run: Run) -> None:
    async def test() -> None:
        sent = [bytes([number]) * size for number, size in enumerate(SIZES)]
        async with pair() as (here, there):

            async def send() -> None:
                for data in sent:
                    await here.send(data[: len(data) // 3], data[len(data) // 3 :])
                here.end()

            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(send())
                received = []
                while (data := await there.receive()) is not None:
                    received.append(data)
            assert received == sent
            # What is answered after the other side's end still arrives.
            await there.send(b"answer")
            assert await here.receive() == b"answer"

    run(test)


@pytest.mark.parametrize("step", [1, 3, 4, 5, 11])
def test_pieces_may_end_anywhere(run: Run, step: int) -> None:
    async def test() -> None:
        sent = [b"", b"a", b"bcd" * 5, b"", b"e" * 30]
        wire = b"".join(map(message, sent))
        async with connected() as (here, plain):
            loop = asyncio.get_running_loop()
            for start in range(0, len(wire), step):
                await loop.sock_sendall(plain, wire[start : start + step])
                # Each piece is read by itself.
                await asyncio.sleep(0)
            assert [await here.receive() for _ in sent] == sent

    run(test)


def test_what_is_not_whole_at_the_end_is_nothing(run: Run) -> None:
    async def test() -> None:
        for half in (b"\x05", message(b"hello")[:-1], message(b"x" * 100_000)[:-1]):
            async with connected() as (here, plain):
                await asyncio.get_running_loop().sock_sendall(plain, message(b"whole") + half)
                plain.close()
                assert await here.receive() == b"whole"
                assert await here.receive() is None

    run(test)


def test_a_message_that_is_too_large_is_refused_when_it_is_announced(run: Run) -> None:
    async def test() -> None:
        for announced in (BYTES_MAX + 1, 2**32 - 1):
            async with connected() as (here, plain):
                wire = message(b"right") + announced.to_bytes(HEADER_BYTES, "little")
                await asyncio.get_running_loop().sock_sendall(plain, wire)
                assert await here.receive() == b"right"
                assert await here.receive() is None
                assert here.failed.endswith("bytes; the limit is 1,048,576")

    run(test)


@pytest.mark.slow
def test_a_sender_waits_for_a_receiver_that_does_not_take(run: Run) -> None:
    async def test() -> None:
        async with pair() as (here, there):
            sent = 0

            async def send() -> None:
                nonlocal sent
                for _ in range(64):
                    await here.send(b"x" * (BYTES_MAX // 4))
                    sent += 1

            async with asyncio.TaskGroup() as tasks:
                sending = tasks.create_task(send())
                before = -1
                while before != sent:
                    before = sent
                    await asyncio.wait((sending,), timeout=0.1)
                # 2 MiB wait at either end, and twice as much in the kernel between them.
                assert sent < 48
                for _ in range(64):
                    assert await there.receive() == b"x" * (BYTES_MAX // 4)

    run(test)


def test_a_lost_connection_ends_both_directions(run: Run) -> None:
    async def test() -> None:
        async with pair() as (here, there):
            waiting = asyncio.ensure_future(here.receive())
            there.abort()
            assert await waiting is None

            async def send() -> None:
                while True:
                    await here.send(b"late")
                    await asyncio.sleep(0)

            # A peer that is gone is known at the latest when something was sent to it.
            with pytest.raises(ConnectionError):
                await send()

    run(test)
