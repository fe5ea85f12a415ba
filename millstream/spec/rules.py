"""What a field's type says beside the type: bounds, checks, how a value is written. The members of `Annotated`.

Each rule does the same in two ways: `before` and `after` hold a value to it, and `pydantic` is what stands for it where
pydantic explains what is wrong with a file, or describes what may be in one (`millstream.spec.validation`). So a
process that reads what is right never imports pydantic.

Above it: the types of `millstream.spec.values` and of connectors. Below it: nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any


class Rule:
    """Holds values of a type to something."""

    def before(self, written: Any) -> Any:
        """What is written, as a value of the type. Raises `ValueError` where it cannot be one."""
        return written

    def after(self, value: Any) -> Any:
        """The value of the type. Raises `ValueError` where it breaks the rule."""
        return value

    def pydantic(self) -> object:
        """The same for pydantic."""
        raise NotImplementedError


@dataclass(frozen=True, slots=True)
class Before(Rule):
    """How what is written becomes a value of the type."""

    read: Callable[[Any], Any]
    """Raises what `millstream.spec.values.problem` gives."""
    written: object = None
    """The type of what is written, for descriptions; None: that of the value."""

    def before(self, written: Any) -> Any:
        return self.read(written)

    def pydantic(self) -> object:
        from pydantic import BeforeValidator

        from millstream.spec.validation import translated

        if self.written is None:
            return BeforeValidator(self.read)
        return BeforeValidator(self.read, json_schema_input_type=translated(self.written))


@dataclass(frozen=True, slots=True)
class After(Rule):
    """A check of the value."""

    check: Callable[[Any], Any]
    """Gives the value to take. Raises what `millstream.spec.values.problem` gives."""

    def after(self, value: Any) -> Any:
        return self.check(value)

    def pydantic(self) -> object:
        from pydantic import AfterValidator

        return AfterValidator(self.check)


@dataclass(frozen=True, slots=True)
class Strict(Rule):
    """A value of that type, nothing that merely looks like it, and within bounds."""

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
    """A list has something in it."""

    def after(self, value: Any) -> Any:
        if not value:
            raise ValueError("it is empty")
        return value

    def pydantic(self) -> object:
        from pydantic import Field

        return Field(min_length=1)


@dataclass(frozen=True, slots=True, eq=False)
class Schema(Rule):
    """What the schema of the pipeline file says of the type, where that is not what the type says."""

    schema: Mapping[str, Any]

    def pydantic(self) -> object:
        from pydantic import WithJsonSchema

        return WithJsonSchema(dict(self.schema))


@dataclass(frozen=True, slots=True)
class Chosen(Rule):
    """Which member of a union is meant, so that what is wrong is looked for in that one alone."""

    by: str | Callable[[Any], str]
    """The field that says so, or what tells the `Tag` of the member."""

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
