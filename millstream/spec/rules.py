"""Rules in addition to a field's type: bounds, checks, the written form of a value. They are members of `Annotated`.

`before` and `after` check a value, so a process that reads valid input never imports pydantic. With what pydantic
explains problems of a file, or describes its allowed contents, instead of each rule: `millstream.spec.validation`.

Above it: the types of `millstream.spec.values` and of connectors. Below it: nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any


class Rule:
    """A rule for the values of a type."""

    def before(self, written: Any) -> Any:
        """The written value as a value of the type. Raises `ValueError` if it cannot be one."""
        return written

    def after(self, value: Any) -> Any:
        """The value, after the check. Raises `ValueError` if it breaks the rule."""
        return value


@dataclass(frozen=True, slots=True)
class Before(Rule):
    """Converts the written value to a value of the type."""

    read: Callable[[Any], Any]
    """The conversion. Raises the error of `millstream.spec.values.problem`."""
    written: object = None
    """The type of the written value, for descriptions; None if it is that of the value."""

    def before(self, written: Any) -> Any:
        return self.read(written)


@dataclass(frozen=True, slots=True)
class After(Rule):
    """A check of the value."""

    check: Callable[[Any], Any]
    """Returns the value to use. Raises the error of `millstream.spec.values.problem`."""

    def after(self, value: Any) -> Any:
        return self.check(value)


@dataclass(frozen=True, slots=True)
class Strict(Rule):
    """Requires a value of exactly that type, within bounds."""

    ge: float | None = None
    le: float | None = None
    lt: float | None = None

    def after(self, value: Any) -> Any:
        if (
            (self.ge is not None and value < self.ge)
            or (self.le is not None and value > self.le)
            or (self.lt is not None and value >= self.lt)
        ):
            raise ValueError("it is out of range")
        return value


@dataclass(frozen=True, slots=True)
class NotEmpty(Rule):
    """Requires a list that is not empty."""

    def after(self, value: Any) -> Any:
        if not value:
            raise ValueError("it is empty")
        return value


@dataclass(frozen=True, slots=True, eq=False)
class Schema(Rule):
    """The schema of the type in the pipeline file, if it differs from that of the type."""

    schema: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Chosen(Rule):
    """Selects the intended member of a union, so that problems are reported only for that member."""

    by: str | Callable[[Any], str]
    """The field that selects it, or a function that returns the `Tag` of the member."""


@dataclass(frozen=True, slots=True)
class Tag(Rule):
    """The name of a member of a union."""

    name: str
