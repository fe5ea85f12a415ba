"""Kinds of sources, sinks and vertices, found by the names that pipeline files give them.

    name ─► one of Millstream's own, or an entry point of an installed package ─► its object

An object is imported when a pipeline names it, so nothing is loaded that a pipeline does not use. Above: the models of
the pipeline file. Below: the packages that are installed.
"""

from collections.abc import Iterator, Mapping
from functools import cached_property
from importlib.metadata import EntryPoint, entry_points
from typing import Any, ClassVar, Generic, Self, TypeVar

from pydantic import (
    Field,
    GetJsonSchemaHandler,
    ModelWrapValidatorHandler,
    PrivateAttr,
    SerializationInfo,
    SerializerFunctionWrapHandler,
    ValidationError,
    create_model,
    model_serializer,
)
from pydantic.json_schema import JsonSchemaValue
from pydantic_core import CoreSchema, InitErrorDetails

from millstream import codes
from millstream.errors import UserError
from millstream.spec.values import ShapeProblem, SpecModel, exactly_one, field_detail, shape_detail

K = TypeVar("K")


class Registry(Generic[K]):
    """The kinds of one thing, by name. Millstream's own have precedence over those of other packages."""

    def __init__(self, group: str, noun: str, of: type[K], own: Mapping[str, str]) -> None:
        """`group` of entry points; `noun` for messages; `own` maps names to `module:object`, as entry points do."""
        self._group = group
        self._noun = noun
        self._of = of
        self._own = {name: EntryPoint(name, value, group) for name, value in own.items()}
        self._loaded: dict[str, K] = {}

    @cached_property
    def _installed(self) -> Mapping[str, Mapping[str, EntryPoint]]:
        """By name and by what they refer to: a package that is found in two places is still one."""
        found: dict[str, dict[str, EntryPoint]] = {}
        for entry in entry_points(group=self._group):
            if entry.name not in self._own:
                found.setdefault(entry.name, {})[entry.value] = entry
        return found

    @property
    def names(self) -> tuple[str, ...]:
        """All of them: Millstream's own, then those of other packages."""
        return (*self._own, *sorted(self._installed))

    def __contains__(self, name: object) -> bool:
        # Other packages are looked for only when a name is not one of ours: that reads the metadata of all of them.
        return name in self._own or name in self._installed

    def load(self, name: str) -> K:
        """The object of a name.

        Errors: `KeyError` for a name there is not; `UserError` when its package does not work.
        """
        if name not in self._loaded:
            self._loaded[name] = self._load(name)
        return self._loaded[name]

    def _load(self, name: str) -> K:
        if name in self._own:
            entry = self._own[name]
        else:
            entry, *others = self._installed[name].values()
            if others:
                packages = ", ".join(sorted(_package(one) for one in (entry, *others)))
                raise UserError(
                    codes.EXTENSION,
                    f"several packages have a {self._noun} called {name}: {packages}; remove all but one",
                )
        try:
            found = entry.load()
        except Exception as error:
            raise UserError(codes.EXTENSION, f"{self._of_package(entry)} cannot be loaded: {error!r}") from error
        if not isinstance(found, self._of):
            raise UserError(
                codes.EXTENSION, f"{self._of_package(entry)} does not fit: {entry.value} is not a {self._of.__name__}"
            )
        return found

    def _of_package(self, entry: EntryPoint) -> str:
        return f"the {self._noun} {entry.name} of {_package(entry)}"

    def all(self) -> Iterator[tuple[str, K]]:
        """Every kind that can be loaded."""
        for name in self.names:
            try:
                yield name, self.load(name)
            except UserError:
                continue


def _package(entry: EntryPoint) -> str:
    return f"{entry.dist.name} {entry.dist.version}" if entry.dist is not None else "Millstream"


class Choice(SpecModel):
    """What has one kind of several: the settings of that kind under its name, beside fields of its own.

    source:
      generator: {rpu: 100}     kind: generator, settings: a model that belongs to the kind
      keys: [user]              a field
    """

    registry: ClassVar[Registry[Any]]
    """Of its kinds. Each has a `model` of its settings and a `meaning`, for the reference."""
    kinds_after: ClassVar[str] = ""
    """The field behind which the reference has the kinds; empty: before all fields."""

    _key: str = PrivateAttr("")
    _settings: SpecModel | None = PrivateAttr(None)

    @property
    def key(self) -> str:
        """The name under which its settings stand."""
        return self._key

    @property
    def kind(self) -> str:
        """What people call its kind."""
        return self._key

    @property
    def settings(self) -> SpecModel:
        """What stands under that name."""
        assert self._settings is not None, "a valid choice has settings"
        return self._settings

    @classmethod
    def is_kind(cls, name: str) -> bool:
        """Whether a member of that name is a kind, and no field."""
        return name not in cls.field_names() and name in cls.registry

    @classmethod
    def field_names(cls) -> frozenset[str]:
        """Names of its fields, as they are written."""
        return frozenset(field.alias or name for name, field in cls.model_fields.items())

    @classmethod
    def shape_problems(cls, data: Mapping[str, Any]) -> Iterator[ShapeProblem]:
        """One kind."""
        named = [name for name in data if cls.is_kind(name)]
        if len(named) != 1 or data[named[0]] is None:
            yield from exactly_one(data, cls.kind_names(), cls.noun)

    @classmethod
    def kind_names(cls) -> tuple[str, ...]:
        """All that may be chosen."""
        return cls.registry.names

    @classmethod
    def validated(
        cls, data: Any, handler: ModelWrapValidatorHandler[Self], details: list[InitErrorDetails]
    ) -> Self | None:
        """Sees to the settings of each kind that is named; the rest are fields."""
        if not isinstance(data, Mapping):
            return super().validated(data, handler, details)
        kinds = [name for name in data if cls.is_kind(name)]
        chosen = {}
        for name in kinds:
            if data[name] is None:
                continue
            try:
                chosen[name] = cls.registry.load(name).model.model_validate(data[name])
            except UserError as error:
                problem = ShapeProblem(
                    codes.EXTENSION, (name,), str(error), "a package that works with this version of Millstream"
                )
                details.append(shape_detail(problem))
            except ValidationError as failure:
                errors = failure.errors()
                details += [field_detail({**error, "loc": (name, *error["loc"])}) for error in errors]
        model = super().validated({name: data[name] for name in data if name not in kinds}, handler, details)
        if model is None or len(chosen) != 1:
            return None
        ((model._key, model._settings),) = chosen.items()
        return model

    def members(self) -> Iterator[tuple[str, Any]]:
        """The settings too."""
        yield self.key, self.settings
        yield from super().members()

    @model_serializer(mode="wrap")
    def _with_settings(self, handler: SerializerFunctionWrapHandler, info: SerializationInfo) -> dict[str, Any]:
        settings = self.settings.model_dump(
            mode=info.mode, by_alias=info.by_alias, exclude_unset=info.exclude_unset, exclude_none=info.exclude_none
        )
        return {self.key: settings, **handler(self)}

    @classmethod
    def __get_pydantic_json_schema__(cls, core_schema: CoreSchema, handler: GetJsonSchemaHandler) -> JsonSchemaValue:
        schema = super().__get_pydantic_json_schema__(core_schema, handler)
        fields: dict[str, Any] = {
            name: (kind.model | None, Field(default=None, description=kind.meaning))
            for name, kind in cls.registry.all()
            if name not in cls.field_names()
        }
        # Pydantic takes models of one name for one another when the first of them is gone.
        members = create_model(f"{cls.__name__}Kinds", **fields)
        properties = handler.resolve_ref_schema(schema)["properties"]
        own = dict(properties)
        properties.clear()
        first = list(own).index(cls.kinds_after) + 1 if cls.kinds_after else 0
        properties.update(list(own.items())[:first])
        properties.update(handler.resolve_ref_schema(handler(members.__pydantic_core_schema__))["properties"])
        properties.update(list(own.items())[first:])
        return schema
