"""One watch of each OT store for all replicas of a worker.

    OT store ─► follow ─► newest of each lane ─► listeners of replica 1, replica 2, ...

Above it: what a replica's lanes share (`shared.py`). Below it: the OT stores; this module only watches them.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable, Mapping
from contextlib import asynccontextmanager
from functools import partial

from millstream.background import Background, open_background
from millstream.watermark.store import OtListener, OtStore, OtStores, OtUpdate, follow, newest


class _Watched:
    """A watched OT store. It passes new updates to its listeners, and keeps the newest update of each lane."""

    def __init__(self, store: OtStore) -> None:
        self.store = store
        self.listeners: list[OtListener] = []
        self.newest: dict[str, OtUpdate] = {}

    def observe(self, update: OtUpdate) -> None:
        known = self.newest.get(update.key)
        if known is None or update.supersedes(known):
            self.newest[update.key] = update
            for listener in self.listeners:
                listener(update)


class Watches:
    """The watches of one worker. Made by `open_watches`."""

    def __init__(self, stores: OtStores, background: Background) -> None:
        self._stores = stores
        self._background = background
        self.failed = background.failed
        """Wait until cancelled. Raises the error that ended a watch: it ends every replica, and each reports it."""
        self._watched: dict[str, _Watched] = {}

    async def listen(self, vertex: str, listener: OtListener) -> None:
        """Pass new updates of that vertex's OT store to `listener`; `catch_up` passes those that are already known."""
        if vertex not in self._watched:
            store = await self._stores.store(vertex)
            # Another replica may have created the watch in the meantime.
            if vertex not in self._watched:
                watched = self._watched[vertex] = _Watched(store)
                self._background.start(partial(follow, store, [watched.observe]), f"follow {vertex}")
        self._watched[vertex].listeners.append(listener)

    async def catch_up(self, listeners: Mapping[str, Iterable[OtListener]]) -> None:
        """Pass the stored state to these listeners, by vertex, so that no decision is made without it."""
        for vertex, of_vertex in listeners.items():
            watched = self._watched[vertex]
            for update in (await newest(watched.store)).values():
                watched.observe(update)
            for listener in of_vertex:
                for update in watched.newest.values():
                    listener(update)

    def forget(self, listeners: Mapping[str, Iterable[OtListener]]) -> None:
        """The reverse of `listen`, for a replica that has ended."""
        for vertex, of_vertex in listeners.items():
            gone = {id(listener) for listener in of_vertex}
            watched = self._watched[vertex]
            watched.listeners = [listener for listener in watched.listeners if id(listener) not in gone]


@asynccontextmanager
async def open_watches(stores: OtStores) -> AsyncIterator[Watches]:
    """Watch the stores that have listeners, until the context ends."""
    async with open_background() as background:
        yield Watches(stores, background)
