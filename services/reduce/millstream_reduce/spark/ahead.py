"""Has an iterator run ahead of who takes from it, in a thread of its own.

Above it: the readers in Spark's Python workers, which would otherwise read nothing while the JVM takes a batch in, and
the JVM would have nothing to do while they read. Below it: nothing.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Generator, Iterable
from typing import TypeVar

DEPTH = 2
"""Items that are held beside the one being made and the one being used."""

Item = TypeVar("Item")


def ahead(items: Iterable[Item]) -> Generator[Item, None, None]:
    """The same items, and what ends them; a little earlier. Once it is closed or has ended no thread is left."""
    made: queue.SimpleQueue[tuple[Item] | BaseException | None] = queue.SimpleQueue()
    room = threading.Semaphore(DEPTH)
    closed = False

    def make() -> None:
        try:
            for item in items:
                room.acquire()
                if closed:
                    return
                made.put((item,))
        except BaseException as error:  # noqa: BLE001  # raised again where the items are taken
            made.put(error)
        else:
            made.put(None)

    thread = threading.Thread(target=make, name="read ahead", daemon=True)
    thread.start()
    try:
        while (item := made.get()) is not None:
            if isinstance(item, BaseException):
                raise item
            room.release()
            yield item[0]
    finally:
        closed = True
        room.release()
        thread.join()
