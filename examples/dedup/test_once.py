from once import Once

import millstream_udf as udf
from millstream_udf.testing import run

MINUTE_US = 60_000_000


def click(name: str, minute: int) -> udf.Record[bytes]:
    return udf.Record(f"{name} {minute}".encode(), event_time=minute * MINUTE_US, keys=(name,))


def test_what_is_repeated_goes_on_once() -> None:
    assert run(Once, [click("a", 0), click("a", 1), click("b", 1), click("a", 9)]).values == [b"a 0", b"b 1"]


def test_it_goes_on_again_after_ten_minutes() -> None:
    assert run(Once, [click("a", 0), click("a", 10), click("a", 19)]).values == [b"a 0", b"a 10"]


def test_what_the_watermark_has_passed_is_forgotten() -> None:
    before = run(Once, [click("a", 1)])
    too_late = run(Once, [click("a", 3)], states=before.states, watermark_us=11 * MINUTE_US)
    assert too_late.values == [b"a 3"]
