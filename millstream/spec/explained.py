"""The base class of everything that users write: what is wrong with a value is explained by pydantic.

Above it: the types of fields, and the models. Below it: models without explanations, and pydantic, which is imported
only if something is wrong.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Self

from millstream.spec.model import NotReadError, PlainModel

if TYPE_CHECKING:
    from pydantic_core import CoreSchema


class SpecModel(PlainModel):
    """See `PlainModel`. Read by `model_validate`."""

    @classmethod
    def model_validate(cls, written: Any) -> Self:
        """The model from the written value. Raises pydantic's `ValidationError`, a `ValueError`, with every problem."""
        try:
            return cls.read(written)
        except NotReadError:
            from millstream.spec.validation import validate

            return validate(cls, written)

    @classmethod
    def model_json_schema(cls) -> dict[str, Any]:
        """The allowed contents, as JSON Schema."""
        from millstream.spec.validation import json_schema

        return json_schema(cls)

    @classmethod
    def __get_pydantic_core_schema__(cls, source: Any, handler: Callable[[Any], CoreSchema]) -> CoreSchema:
        from millstream.spec.validation import validating

        return handler(validating(cls))
