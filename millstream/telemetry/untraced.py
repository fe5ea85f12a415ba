"""Spans as lanes see them, and the one that is used if nothing is traced. No OpenTelemetry."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol


class Span(Protocol):
    """A stage at work on a frame."""

    @property
    def traceparent(self) -> str:
        """Goes to the function that is called, and with the frame to the next stage; empty when not sampled."""

    def tell(self, name: str, value: str | int | float | Sequence[str]) -> None:
        """Give the span an attribute."""


class UntracedSpan:
    """Records nothing, and passes on the context it was given."""

    __slots__ = ("traceparent",)

    def __init__(self, traceparent: str = "") -> None:
        self.traceparent = traceparent

    def tell(self, name: str, value: str | int | float | Sequence[str]) -> None:
        return None

    def __enter__(self) -> UntracedSpan:
        return self

    def __exit__(self, *_: object) -> None:
        return None
