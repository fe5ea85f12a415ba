"""The interface of spans for lanes, and the span for untraced frames. It does not depend on OpenTelemetry."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol


class Span(Protocol):
    """The work of a stage on a frame."""

    @property
    def traceparent(self) -> str:
        """The context for the called function and, with the frame, for the next stage; empty if it is not sampled."""

    def tell(self, name: str, value: str | int | float | Sequence[str]) -> None:
        """Sets an attribute of the span."""


class UntracedSpan:
    """Records nothing, and passes on the context that it was given."""

    __slots__ = ("traceparent",)

    def __init__(self, traceparent: str = "") -> None:
        self.traceparent = traceparent

    def tell(self, name: str, value: str | int | float | Sequence[str]) -> None:
        return None

    def __enter__(self) -> UntracedSpan:
        return self

    def __exit__(self, *_: object) -> None:
        return None
