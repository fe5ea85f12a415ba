"""Spans as lanes see them, and the one that stands where nothing is traced. No OpenTelemetry."""

from __future__ import annotations

from typing import Protocol


class Span(Protocol):
    """A stage at work on a frame."""

    @property
    def traceparent(self) -> str:
        """Goes to the function that is called, and with the frame to the next stage; empty when not sampled."""


class UntracedSpan:
    """Records nothing, and passes on the context it was given."""

    __slots__ = ("traceparent",)

    def __init__(self, traceparent: str = "") -> None:
        self.traceparent = traceparent

    def __enter__(self) -> UntracedSpan:
        return self

    def __exit__(self, *_: object) -> None:
        return None
