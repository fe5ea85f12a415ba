"""Checkpoints: whole, foreign, damaged."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from millstream import codes
from millstream.clock import END_OF_TIME_US
from millstream.errors import DamageError, UserError
from millstream.wire.reduce.v1 import windows_pb2
from millstream_reduce.windows import WindowConfig, make_windowing
from tests.support.errors import raises
from tests.unit.reduce.windows.rows import Table

CONFIGS = {
    "fixed": WindowConfig("fixed", length_us=10),
    "sliding": WindowConfig("sliding", length_us=10, slide_us=4, lateness_us=1),
    "session": WindowConfig("session", timeout_us=5, keyed=True),
    "keyless session": WindowConfig("session", timeout_us=5),
    "period": WindowConfig("global", every_us=10, accumulate=True, keyed=True),
    "count": WindowConfig("global", count=3, accumulate=True),
    "discarding count": WindowConfig("global", count=3, keyed=True),
}


def filled(config: WindowConfig) -> Table:
    table = Table(config)
    table.add((3, "a"), (14, "b"), (2, "a"), (30, "a"), (31, "c"))
    table.windowing.early()
    table.windowing.close(21, 1)
    table.add((25, "a"), (40, "b"))
    return table


@pytest.mark.parametrize("config", CONFIGS.values(), ids=CONFIGS)
def test_what_is_restored_goes_on_like_what_was_kept(config: WindowConfig) -> None:
    table = filled(config)
    restored = make_windowing(config)
    restored.restore(table.windowing.checkpoint())
    assert restored.checkpoint() == table.windowing.checkpoint()
    assert restored.closed_us == table.windowing.closed_us
    assert restored.oldest_end_us() == table.windowing.oldest_end_us()
    assert restored.live_segments() == table.windowing.live_segments()
    assert restored.open_rows() == table.windowing.open_rows()
    assert restored.open_windows() == table.windowing.open_windows()
    assert restored.early() == table.windowing.early()
    assert list(restored.close(END_OF_TIME_US)) == list(table.windowing.close(END_OF_TIME_US))


@pytest.mark.parametrize("config", CONFIGS.values(), ids=CONFIGS)
def test_an_empty_one_takes_back_what_was_there(config: WindowConfig) -> None:
    empty = make_windowing(config).checkpoint()
    table = filled(config)
    table.windowing.restore(empty)
    assert table.windowing.checkpoint() == empty
    assert table.windowing.open_rows() == table.windowing.open_windows() == 0
    assert table.close(END_OF_TIME_US) == {}


@pytest.mark.parametrize("config", CONFIGS.values(), ids=CONFIGS)
def test_one_of_other_settings_is_refused_with_both_named(config: WindowConfig) -> None:
    checkpoint = filled(config).windowing.checkpoint()
    for other in CONFIGS.values():
        if other is not config:
            with pytest.raises(UserError) as refusal:
                make_windowing(other).restore(checkpoint)
            assert config.identity in str(refusal.value)
            assert other.identity in str(refusal.value)


@pytest.mark.guarantee("I10")
def test_one_of_another_format_is_refused() -> None:
    message = windows_pb2.OpenWindows.FromString(make_windowing(CONFIGS["fixed"]).checkpoint())
    message.format = 2
    with raises(codes.CHECKPOINT_UNREADABLE, match="format 2, this version reads 1"):
        make_windowing(CONFIGS["fixed"]).restore(message.SerializeToString())


@pytest.mark.slow
@pytest.mark.guarantee("I10")
@pytest.mark.parametrize("config", CONFIGS.values(), ids=CONFIGS)
@settings(max_examples=30, deadline=None)
@given(data=st.data())
def test_a_cut_one_is_refused_and_never_misread(config: WindowConfig, data: st.DataObject) -> None:
    whole = filled(config).windowing.checkpoint()
    cut = whole[: data.draw(st.integers(0, len(whole) - 1))]
    restored = make_windowing(config)
    with pytest.raises(DamageError):
        restored.restore(cut)
