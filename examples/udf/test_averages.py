from datetime import UTC, datetime, timedelta

from averages import process

import millstream_udf as udf
from millstream_udf.testing import run_reduce, run_windows

NOON = datetime(2024, 6, 1, 12, tzinfo=UTC)


def test_one_window() -> None:
    reduced = run_reduce(process, [b"20", b"22"], keys=["attic"], window=udf.Window(0, 3_600_000_000))
    assert reduced.values == [b'{"sensor": "attic", "hour": "1970-01-01T00:00:00+00:00", "celsius": 21.0}']


def test_every_hour_and_sensor() -> None:
    readings = [
        udf.Record(b"%d" % (10 * hour), event_time=NOON + timedelta(hours=hour, minutes=5), keys=(sensor,))
        for hour in (0, 2, 5)
        for sensor in ("attic", "cellar")
    ]
    reduced = run_windows(process, readings, timedelta(hours=1))
    assert [(one.window.start.hour, one.keys) for one in reduced] == [
        (hour, (sensor,)) for hour in (12, 14, 17) for sensor in ("attic", "cellar")
    ]
    assert [message.tags for message in reduced[-1].messages] == [("hot",)]
