"""The directories of records by their event time. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from functools import lru_cache

from millstream_connectors.file.sink.lane import PartitionOf

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_HOUR_US = 3_600_000_000
_FORMS = {"year": "%Y", "month": "%m", "day": "%d", "dt": "%Y-%m-%d", "hour": "%H"}


def partitions(names: Sequence[str]) -> PartitionOf:
    """Directories of an event time, in UTC: `dt=2024-01-31/hour=08`."""

    @lru_cache(maxsize=1024)
    def of_hour(hour: int) -> str:
        moment = _EPOCH + timedelta(hours=hour)
        # strftime writes a year before 1000 with fewer digits.
        texts = {name: moment.strftime(_FORMS[name].replace("%Y", f"{moment.year:04}")) for name in names}
        return "/".join(f"{name}={texts[name]}" for name in names)

    return lambda time_us: of_hour(time_us // _HOUR_US)
