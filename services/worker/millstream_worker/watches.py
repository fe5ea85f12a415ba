"""One watch of each OT store for all replicas of a worker.

    OT store ─► follow ─► newest of each lane ─► listeners of replica 1, replica 2, ...

Above it: what a replica's lanes share (`shared.py`). Below it: the OT stores, which are watched and not written here.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterable, Mapping
from contextlib import asynccontextmanager

from millstream.background import open_tasks
from millstream.watermark.store import OtListener, OtStore, OtStores, OtUpdate, follow, newest


class _Watched:
    """An OT store that is watched: hands on what is new, and knows the newest of each lane."""

    def __init__(self, store: OtStore) -> None:
        self.store = store
        self.listeners: list[OtListener] = []
        self.newest: dict[str, OtUpdate] = {}

    def observe(self, update: OtUpdate) -> None:
        known = self.newest.get(update.key)
        if known is None or update.supersedes(known):
            self.newest[update.key] = update
            for listener in self.listeners:
                listener.observe(update)


class Watches:
    """Of one worker. Made by `open_watches`."""

    def __init__(self, stores: OtStores, tasks: asyncio.TaskGroup) -> None:
        self._stores = stores
        self._tasks = tasks
        self._watched: dict[str, _Watched] = {}
        self._following: list[asyncio.Task[None]] = []
        self._error: Exception | None = None
        self._failed = asyncio.Event()

    async def listen(self, vertex: str, listener: OtListener) -> None:
        """Have the updates of that vertex's OT store handed to `listener`; what is known already by `catch_up`."""
        if vertex not in self._watched:
            store = await self._stores.store(vertex)
            # Another replica may have asked meanwhile.
            if vertex not in self._watched:
                watched = self._watched[vertex] = _Watched(store)
                self._following.append(self._tasks.create_task(self._follow(watched), name=f"follow {vertex}"))
        self._watched[vertex].listeners.append(listener)

    async def catch_up(self, listeners: Mapping[str, Iterable[OtListener]]) -> None:
        """Tell these listeners, by vertex, what is stored, so that nothing is decided without it."""
        for vertex, of_vertex in listeners.items():
            watched = self._watched[vertex]
            for update in (await newest(watched.store)).values():
                watched.observe(update)
            for listener in of_vertex:
                for update in watched.newest.values():
                    listener.observe(update)

    def forget(self, listeners: Mapping[str, Iterable[OtListener]]) -> None:
        """The reverse of `listen`: the replica they belong to has ended."""
        for vertex, of_vertex in listeners.items():
            gone = {id(listener) for listener in of_vertex}
            watched = self._watched[vertex]
            watched.listeners = [listener for listener in watched.listeners if id(listener) not in gone]

    async def failed(self) -> None:
        """Until cancelled. Raises what ended a watch: each replica ends with it, and says so for itself."""
        await self._failed.wait()
        assert self._error is not None
        raise self._error

    def close(self) -> None:
        """End all watches."""
        for task in self._following:
            task.cancel()

    async def _follow(self, watched: _Watched) -> None:
        try:
            await follow(watched.store, [watched])
        except Exception as error:  # noqa: BLE001  # whatever it is, it ends who listens
            self._error = error
            self._failed.set()


@asynccontextmanager
async def open_watches(stores: OtStores) -> AsyncIterator[Watches]:
    """Watches the stores that have listeners, until the context ends."""
    async with open_tasks() as tasks:
        watches = Watches(stores, tasks)
        try:
            yield watches
        finally:
            watches.close()
