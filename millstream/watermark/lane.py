"""The watermark of one lane: never goes back, also over a restart. Pure."""

from __future__ import annotations

from millstream.clock import START_OF_TIME_US


class LaneWatermark:
    """Holds what a map or sink lane promises: the watermark of its oldest unfinished work.

    The input watermark that counts is the one at the last frame that is *committed*
    (`WatermarkFetcher.watermark_at(sequence of that frame)`): what is read and unfinished lies behind it.
    """

    __slots__ = ("_watermark_us",)

    def __init__(self, restored_us: int = START_OF_TIME_US) -> None:
        """`restored_us`: from the lane's mark, or from its last entry in the OT store where that is later (a lane that
        was moved on while idle).
        """
        self._watermark_us = restored_us

    @property
    def watermark_us(self) -> int:
        return self._watermark_us

    def advance(self, input_us: int, oldest_unfinished_us: int | None = None) -> int:
        """The watermark now.

        `oldest_unfinished_us`: the watermark under which the oldest unfinished frame was read, where the caller keeps
        it; None when nothing is unfinished, or when `input_us` already is the one at the last committed frame.
        """
        candidate_us = input_us if oldest_unfinished_us is None else min(input_us, oldest_unfinished_us)
        self._watermark_us = max(self._watermark_us, candidate_us)
        return self._watermark_us
