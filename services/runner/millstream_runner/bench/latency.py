"""Latencies from a process's metrics endpoint: reads a histogram in seconds, and computes quantiles.

Above it: the benchmarks. Below it: HTTP on the loopback. Parsing and arithmetic are pure.
"""

from __future__ import annotations

import asyncio
import re
import urllib.request
from collections.abc import Mapping
from dataclasses import dataclass, field

from millstream import codes
from millstream.errors import RetryLaterError
from millstream.telemetry.metrics import LATENCY

_TIMEOUT_S = 2.0
_BUCKET = r'^{}_bucket{{.*?le="([^"]+)".*?}} (\S+)'


@dataclass(frozen=True, slots=True)
class LatencyCounts:
    """How many frames took at most this long: cumulative, by upper bound in seconds."""

    at_most: Mapping[float, float] = field(default_factory=dict)

    def since(self, before: LatencyCounts) -> LatencyCounts:
        """The counts since `before`."""
        return LatencyCounts({bound: count - before.at_most.get(bound, 0) for bound, count in self.at_most.items()})

    @property
    def total(self) -> int:
        """Number of frames."""
        return int(max(self.at_most.values(), default=0))

    def quantile_s(self, share: float) -> float | None:
        """The latency that this share of the frames did not exceed, interpolated in its bucket; None without frames.

        Above the last bound it is that bound.
        """
        wanted = share * self.total
        low_s, low = 0.0, 0.0
        for bound_s, count in sorted(self.at_most.items()):
            if count >= wanted and count > low:
                if bound_s == float("inf"):
                    return low_s
                return low_s + (bound_s - low_s) * (wanted - low) / (count - low)
            low_s, low = bound_s, count
        return None


def parse_latency(text: str, metric: str = LATENCY) -> LatencyCounts:
    """The latencies in a page of Prometheus text, summed over all lanes."""
    counts: dict[float, float] = {}
    for bound, count in re.findall(_BUCKET.format(metric), text, re.MULTILINE):
        counts[float(bound)] = counts.get(float(bound), 0.0) + float(count)
    return LatencyCounts(counts)


async def scrape_latency(port: int, metric: str = LATENCY) -> LatencyCounts:
    """The current latencies of the process with this metrics port. Raises `RetryLaterError` if it does not answer."""
    try:
        return parse_latency(await asyncio.to_thread(_get, f"http://127.0.0.1:{port}/metrics"), metric)
    except OSError as error:
        raise RetryLaterError(codes.TARGET_AWAY, f"the metrics on port {port} cannot be read: {error}") from error


def _get(url: str) -> str:
    # No proxy: the process is on this machine.
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    with opener.open(url, timeout=_TIMEOUT_S) as answer:
        text: str = answer.read().decode()
    return text
