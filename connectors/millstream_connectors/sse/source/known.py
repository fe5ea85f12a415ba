"""The ids of events that have arrived, to notice a server that sends them again. Pure.

    place: "<last id>\n<digest of the first id><digests of the newest ids>"

A server that ignores `Last-Event-ID` begins each connection with an event that has arrived before: the first one of
all, or one of the newest. The lane's mark has the digests of these. While the lane is open, more are remembered. The
places of earlier versions are an id alone.

Above it: the stream. It knows no connection.
"""

from __future__ import annotations

from collections import deque
from hashlib import blake2b

from millstream.limits import SSE_IDS_KEPT, SSE_IDS_REMEMBERED

_DIGEST_BYTES = 8
_HEX = 2 * _DIGEST_BYTES


class KnownIds:
    """The ids of one stream. An id is named by its digest."""

    def __init__(self) -> None:
        self._connection = 0
        self._first = ""
        """Digest of the first id of all."""
        self._newest: deque[str] = deque(maxlen=SSE_IDS_KEPT)
        self._connections: dict[str, int] = {}
        """For each remembered id, in the order of arrival: the connection that it came over."""

    def begin(self, place: str) -> str:
        """A connection begins at this place. Returns the last id; empty if there is none."""
        last, _, digests = place.partition("\n")
        if not self._connection:
            kept = [digests[at : at + _HEX] for at in range(0, len(digests), _HEX)]
            self._first, self._newest = (kept or [""])[0], deque(kept[1:], SSE_IDS_KEPT)
            if last:
                kept.append(_digest(last))
            self._connections = dict.fromkeys(kept, 0)
        self._connection += 1
        return last

    def came_before(self, event_id: str) -> bool:
        """Whether an event with this id came over an earlier connection."""
        return self._connections.get(_digest(event_id), self._connection) < self._connection

    def add(self, event_id: str) -> str:
        """An event has arrived. Returns the place after it."""
        digest = _digest(event_id)
        self._first = self._first or digest
        self._newest.append(digest)
        self._connections[digest] = self._connection
        if len(self._connections) > SSE_IDS_REMEMBERED:
            # The first id of all stays known.
            oldest = next(known for known in self._connections if known != self._first)
            del self._connections[oldest]
        return f"{event_id}\n{self._first}{''.join(self._newest)}"


def last_of(place: str) -> str:
    """The last id of a place."""
    return place.partition("\n")[0]


def _digest(event_id: str) -> str:
    return blake2b(event_id.encode(errors="surrogatepass"), digest_size=_DIGEST_BYTES).hexdigest()
