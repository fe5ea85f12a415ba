"""Rules in addition to a field's type: bounds, checks, the written form of a value. They are members of `Annotated`.

Each rule has two equivalent forms: `before` and `after` check a value, and `pydantic` is the form with which pydantic
explains problems of a file, or describes its allowed contents (`millstream.spec.validation`). So a process that reads
valid input never imports pydantic.

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

    def pydantic(self) -> object:
        """The same for pydantic."""
        raise NotImplementedError


@dataclass(frozen=True, slots=True)
class Before(Rule):
    """Converts the written value to a value of the type."""

    read: Callable[[Any], Any]
    """The conversion. Raises the error of `millstream.spec.values.problem`."""
    written: object = None
    """The type of the written value, for descriptions; None if it is that of the value."""

    def before(self, written: Any) -> Any:
        return self.read(written)

    def pydantic(self) -> object:
        from pydantic import BeforeValidator

        return BeforeValidator(self.read)


@dataclass(frozen=True, slots=True)
class After(Rule):
    """A check of the value."""

    check: Callable[[Any], Any]
    """Returns the value to use. Raises the error of `millstream.spec.values.problem`."""

    def after(self, value: Any) -> Any:
        return self.check(value)

    def pydantic(self) -> object:
        from pydantic import AfterValidator

        return AfterValidator(self.check)


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

    def pydantic(self) -> object:
        from pydantic import Field

        return Field(strict=True, ge=self.ge, le=self.le, lt=self.lt)


@dataclass(frozen=True, slots=True)
class NotEmpty(Rule):
    """Requires a list that is not empty."""

    def after(self, value: Any) -> Any:
        if not value:
            raise ValueError("it is empty")
        return value

    def pydantic(self) -> object:
        from pydantic import Field

        return Field(min_length=1)


@dataclass(frozen=True, slots=True, eq=False)
class Schema(Rule):
    """The schema of the type in the pipeline file, if it differs from that of the type."""

    schema: Mapping[str, Any]

    def pydantic(self) -> object:
        from pydantic import WithJsonSchema

        return WithJsonSchema(dict(self.schema))


@dataclass(frozen=True, slots=True)
class Chosen(Rule):
    """Selects the intended member of a union, so that problems are reported only for that member."""

    by: str | Callable[[Any], str]
    """The field that selects it, or a function that returns the `Tag` of the member."""

    def pydantic(self) -> object:
        from pydantic import Discriminator

        return Discriminator(self.by)


@dataclass(frozen=True, slots=True)
class Tag(Rule):
    """The name of a member of a union."""

    name: str

    def pydantic(self) -> object:
        import pydantic

        return pydantic.Tag(self.name)
