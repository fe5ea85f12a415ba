"""Bucket bounds of the histograms. Pure."""

from __future__ import annotations

from millstream.clock import MICROSECONDS

_SECONDS = (
    *(0.001, 0.002, 0.003, 0.005, 0.0075, 0.01, 0.015, 0.02, 0.03, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.5, 0.75),
    *(1.0, 2.0, 3.0, 5.0, 7.5, 10.0, 20.0, 30.0, 60.0, 120.0, 300.0, 600.0),
)
LATENCY_BOUNDS_S = (
    *(bound for bound in _SECONDS if bound < 0.005),
    *(0.004, 0.005, 0.006, 0.007, 0.0075, 0.008, 0.009, 0.01, 0.011, 0.012, 0.013, 0.014, 0.015, 0.0175),
    *(bound for bound in _SECONDS if bound > 0.015),
)
"""Bucket bounds of the end-to-end latency: 1 ms to 10 min, each at most two and a half times the previous one. They are
finer in the range of latencies at low rates."""
CLOSE_BOUNDS_S = (
    *(bound for bound in _SECONDS if bound < 0.05),
    *(0.05, 0.06, 0.07, 0.08, 0.09, 0.1, 0.11, 0.12, 0.13, 0.14, 0.15, 0.16, 0.17, 0.18, 0.19, 0.2, 0.22, 0.25, 0.28),
    *(0.3, 0.33, 0.36, 0.4, 0.45, 0.5, 0.55, 0.6, 0.65, 0.7, 0.75, 0.8, 0.9),
    *(bound for bound in _SECONDS if bound >= 1.0),
)
"""Bucket bounds of the time from closing windows to their commit. They are finer in its usual range, at most a fifth
apart: a reduce is judged by the quantiles of this time, and within a bucket a quantile is only an estimate."""
LOOP_LAG_BOUNDS_S = tuple(bound for bound in _SECONDS if bound <= 20.0)
"""Bucket bounds of the event loop's lag: from 1 ms to more than the longest time that a worker may be stopped."""
PROCESSING_BOUNDS_US = tuple(round(bound * MICROSECONDS) for bound in (0.0001, 0.0002, 0.0005, *_SECONDS))
"""Bucket bounds of processing times: 100 µs to 10 min."""
