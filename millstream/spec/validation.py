"""Finds the problems of a file with pydantic, and creates the schema of its allowed contents.

    SpecModel ─► the same fields as a pydantic model ─► every problem at once, or the `SpecModel` after all

Pydantic's models are created from ours when the first problem occurs. Above it: `SpecModel`, which imports it then;
nothing else does. Below it: pydantic.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import GenericAlias, UnionType
from typing import Annotated, Any, ClassVar, TypeVar, Union, get_args, get_origin, get_type_hints

import pydantic
from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    GetJsonSchemaHandler,
    ModelWrapValidatorHandler,
    ValidationError,
    create_model,
    model_validator,
)
from pydantic.json_schema import JsonSchemaValue
from pydantic_core import CoreSchema, InitErrorDetails, PydanticCustomError

from millstream.spec.field_docs import field_docs_of
from millstream.spec.model import PlainModel, ShapeProblem, problem
from millstream.spec.rules import After, Before, Chosen, NotEmpty, Schema, Strict, Tag

ModelT = TypeVar("ModelT", bound=PlainModel)


class Validating(BaseModel):
    """The pydantic counterpart of a `PlainModel`, which it returns."""

    model_config = ConfigDict(
        # Only the pipeline as a whole is validated: its parts need not be complete by themselves.
        defer_build=True,
        frozen=True,
        extra="forbid",
        allow_inf_nan=False,
        # A field may have the name of one of pydantic's methods.
        protected_namespaces=(),
    )

    of_model: ClassVar[type[PlainModel]]

    @model_validator(mode="wrap")
    @classmethod
    def _every_problem(cls, data: Any, handler: ModelWrapValidatorHandler[Any]) -> Any:
        if isinstance(data, cls.of_model):
            return data

        def with_fields(written: Any) -> PlainModel | None:
            try:
                held = handler(cls.of_model.completed(written))
            except ValidationError as failure:
                details.extend(field_detail(dict(error)) for error in failure.errors())
                return None
            return cls.of_model.of_values({name: getattr(held, name) for name in held.model_fields_set})

        problems = list(cls.of_model.shape_problems(data)) if isinstance(data, Mapping) else []
        details = [shape_detail(item) for item in problems]
        model = cls.of_model.validated(data, with_fields, details)
        if model is not None:
            details.extend(shape_detail(item) for item in model.relation_problems())
        if model is None or details:
            raise ValidationError.from_exception_data(cls.of_model.__name__, details)
        return model

    @classmethod
    def __get_pydantic_json_schema__(cls, core_schema: CoreSchema, handler: GetJsonSchemaHandler) -> JsonSchemaValue:
        schema = handler(core_schema)
        documented: type = cls.of_model
        meanings = field_docs_of(documented)
        properties = handler.resolve_ref_schema(schema).get("properties", {})
        for name, field in cls.of_model.model_fields.items():
            if name in meanings:
                properties[field.alias].setdefault("description", meanings[name])
            if isinstance(field.default, PlainModel):
                properties[field.alias].setdefault("default", field.default.as_written())
        more = cls.of_model.more_members()
        if more:
            _insert(properties, _schemas_of(cls.of_model.__name__, more, handler), cls.of_model)
        return schema


def _schemas_of(
    name: str, members: Mapping[str, tuple[type[PlainModel], str]], handler: GetJsonSchemaHandler
) -> dict[str, Any]:
    fields: dict[str, Any] = {
        key: (validating(model) | None, Field(default=None, description=meaning))
        for key, (model, meaning) in members.items()
    }
    # Pydantic confuses models with the same name once the first one has been deleted.
    made = create_model(f"{name}Kinds", **fields)
    found: dict[str, Any] = handler.resolve_ref_schema(handler(made.__pydantic_core_schema__))["properties"]
    return found


def _insert(properties: dict[str, Any], more: Mapping[str, Any], model: type[PlainModel]) -> None:
    """Insert members among those of the fields, after the one that the model names."""
    own = dict(properties)
    after: str = getattr(model, "kinds_after", "")
    first = list(own).index(after) + 1 if after else 0
    properties.clear()
    properties.update(list(own.items())[:first])
    properties.update(more)
    properties.update(list(own.items())[first:])


_MADE: dict[type[PlainModel], type[Validating]] = {}


def validating(model: type[PlainModel]) -> type[Validating]:
    """The pydantic model with the fields of one of ours."""
    if model not in _MADE:
        _MADE[model] = _made(model)
    return _MADE[model]


def _made(model: type[PlainModel]) -> type[Validating]:
    types = get_type_hints(model, include_extras=True)
    fields: dict[str, Any] = {}
    for name, field in model.model_fields.items():
        kind = translated(types[name])
        if field.is_required:
            fields[name] = (kind, Field(alias=field.alias))
        elif field.factory is not None or isinstance(field.default, PlainModel):
            fields[name] = (kind, Field(default_factory=field.absent, alias=field.alias))
        else:
            fields[name] = (kind, Field(default=field.default, alias=field.alias))
    made: type[Validating] = create_model(
        model.__name__, __base__=Validating, __module__=model.__module__, __doc__=model.__doc__, **fields
    )
    made.__qualname__ = model.__qualname__
    made.of_model = model
    return made


def translated(kind: Any) -> Any:
    """A type with pydantic's metadata instead of our rules, and pydantic's models instead of ours."""
    origin: Any = get_origin(kind)
    inner = get_args(kind)
    if origin is Annotated:
        return Annotated[(translated(kind.__origin__), *(_translated_rule(rule) for rule in kind.__metadata__))]
    if origin in (Union, UnionType):
        return Union[tuple(translated(one) for one in inner)]  # noqa: UP007  # made of a tuple
    if origin is tuple:
        return GenericAlias(tuple, (translated(inner[0]), ...))
    if origin in (dict, Mapping):
        return GenericAlias(origin, tuple(translated(one) for one in inner))
    if isinstance(kind, type) and issubclass(kind, PlainModel):
        return validating(kind)
    return kind


def _translated_rule(rule: object) -> object:
    match rule:
        case Before(read, None):
            return pydantic.BeforeValidator(read)
        case Before(read, written):
            return pydantic.BeforeValidator(read, json_schema_input_type=translated(written))
        case After(check):
            return pydantic.AfterValidator(check)
        case Strict(ge, le, lt):
            return Field(strict=True, ge=ge, le=le, lt=lt)
        case NotEmpty():
            return Field(min_length=1)
        case Schema(schema):
            return pydantic.WithJsonSchema(dict(schema))
        case Chosen(by):
            return pydantic.Discriminator(by)
        case Tag(name):
            return pydantic.Tag(name)
    return rule


def validate(model: type[ModelT], written: Any) -> ModelT:
    """The model from the written value. Raises `ValidationError` with every problem."""
    found: Any = validating(model).model_validate(written)
    assert isinstance(found, model), "the pydantic counterpart returns the model"
    return found


def json_schema(model: type[PlainModel]) -> dict[str, Any]:
    """The allowed contents, as JSON Schema."""
    return validating(model).model_json_schema(by_alias=True)


def shape_detail(item: ShapeProblem) -> InitErrorDetails:
    """A problem for pydantic."""
    return InitErrorDetails(type=problem(item.code, item.what, item.expected, item.type), loc=item.loc, input=None)


def field_detail(error: dict[str, Any]) -> InitErrorDetails:
    """A pydantic error, to be reported with others."""
    context = {key: value for key, value in error.get("ctx", {}).items() if key != "error"}
    kind = PydanticCustomError(error["type"], error["msg"], context)
    return InitErrorDetails(type=kind, loc=error["loc"], input=error["input"])
