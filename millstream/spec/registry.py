"""Kinds of sources, sinks and vertices, found by their names in pipeline files.

    name ─► one of Millstream's own, or an entry point of an installed package ─► its object

An object is imported when a pipeline names it, so nothing is loaded that a pipeline does not use. Above: the models of
the pipeline file. Below: the packages that are installed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import cached_property
from importlib import import_module
from typing import TYPE_CHECKING, Any, ClassVar, Generic, Self, TypeVar

from millstream import codes
from millstream.errors import UserError
from millstream.nearest import one_of
from millstream.spec.explained import SpecModel
from millstream.spec.model import NotReadError, PlainModel, ShapeProblem, field
from millstream.spec.values import exactly_one, problem

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint

    from pydantic_core import InitErrorDetails

K = TypeVar("K")


class Registry(Generic[K]):
    """The kinds of sources, sinks or vertices, by name. Millstream's own have precedence over those of other
    packages."""

    def __init__(self, group: str, noun: str, of: type[K], own: Mapping[str, str]) -> None:
        """`group` of entry points; `noun` for messages; `own` maps names to `module:object`, as entry points do."""
        self._group = group
        self.noun = noun
        """The noun for its kinds, for messages."""
        self._of = of
        self._own = own
        self._loaded: dict[str, K] = {}

    @cached_property
    def _installed(self) -> Mapping[str, Mapping[str, EntryPoint]]:
        """Entry points by name and target: a package that is found in two places counts once."""
        # This import takes longer than those of a worker's other modules of the standard library.
        from importlib.metadata import entry_points

        found: dict[str, dict[str, EntryPoint]] = {}
        for entry in entry_points(group=self._group):
            if entry.name not in self._own:
                found.setdefault(entry.name, {})[entry.value] = entry
        return found

    @property
    def names(self) -> tuple[str, ...]:
        """All kinds: Millstream's own, then those of other packages."""
        return (*self._own, *sorted(self._installed))

    def __contains__(self, name: object) -> bool:
        # Other packages are searched only if a name is not Millstream's own, because that reads the metadata of all of
        # them.
        return name in self._own or name in self._installed

    def is_own(self, name: str) -> bool:
        """Whether that kind is Millstream's own."""
        return name in self._own

    def checked(self, name: str, *also: str) -> str:
        """A name in a pipeline file, checked. Raises a problem if no package that can be used has it. `also`: other
        names that would be right in its place."""
        if name not in self:
            what = f"there is no {self.noun} `{name}`"
            raise problem(codes.NOT_ALLOWED, what, one_of(name, (*self.names, *also)))
        try:
            # The modules of our own are not needed to read a pipeline.
            if not self.is_own(name):
                self.load(name)
        except UserError as error:
            raise problem(codes.EXTENSION, str(error), _FITTING_PACKAGE) from error
        return name

    def load(self, name: str) -> K:
        """The object of a name.

        Errors: `KeyError` for an unknown name; `UserError` if its package does not work.
        """
        if name not in self._loaded:
            self._loaded[name] = self._load(name)
        return self._loaded[name]

    def _load(self, name: str) -> K:
        place, package = self._place(name)
        of_package = f"the {self.noun} {name} of {package}"
        module, _, attribute = place.partition(":")
        try:
            found = getattr(import_module(module), attribute)
        except Exception as error:
            raise UserError(codes.EXTENSION, f"{of_package} cannot be loaded: {error!r}") from error
        if not isinstance(found, self._of):
            raise UserError(codes.EXTENSION, f"{of_package} is not usable: {place} is not a {self._of.__name__}")
        return found

    def _place(self, name: str) -> tuple[str, str]:
        """The place of its object, `module:object`, and its package."""
        if name in self._own:
            return self._own[name], OURS
        entry, *others = self._installed[name].values()
        if others:
            packages = ", ".join(sorted(_package(one) for one in (entry, *others)))
            raise UserError(
                codes.EXTENSION, f"several packages have a {self.noun} named {name}: {packages}; remove all but one"
            )
        return entry.value, _package(entry)

    def package_of(self, name: str) -> str:
        """The package that has a kind, with its version unless it is Millstream. Errors: those of `load`."""
        return self._place(name)[1]

    def all(self) -> Iterator[tuple[str, K]]:
        """Every kind that can be loaded."""
        for name in self.names:
            try:
                yield name, self.load(name)
            except UserError:
                continue


_FITTING_PACKAGE = "a package that works with this version of Millstream"
OURS = "Millstream"
"""The name of the project's own package in messages."""


def _package(entry: EntryPoint) -> str:
    return f"{entry.dist.name} {entry.dist.version}" if entry.dist is not None else OURS


class Choice(SpecModel):
    """A model with one kind of several: the settings of that kind under its name, beside its own fields.

    source:
      generator: {rpu: 100}     kind: generator, settings: a model that belongs to the kind
      keys: [user]              a field
    """

    registry: ClassVar[Registry[Any]]
    """The registry of its kinds. Each has a `model` of its settings and a `meaning`, for the reference."""
    kinds_after: ClassVar[str] = ""
    """The field after which the reference lists the kinds; empty: before all fields."""

    _key: str = field(default="", init=False)
    _settings: SpecModel | None = field(default=None, init=False)

    @property
    def key(self) -> str:
        """The name of its kind, under which its settings are."""
        return self._key

    @property
    def kind(self) -> str:
        """The name of its kind in messages."""
        return self._key

    @property
    def settings(self) -> SpecModel:
        """The settings of its kind."""
        assert self._settings is not None, "a valid choice has settings"
        return self._settings

    @classmethod
    def is_kind(cls, name: str) -> bool:
        """Whether a member of that name is a kind and not a field."""
        return name not in cls.field_names() and name in cls.registry

    @classmethod
    def field_names(cls) -> frozenset[str]:
        """Names of its fields, as they are written."""
        return frozenset(field.alias for field in cls.model_fields.values())

    @classmethod
    def shape_problems(cls, data: Mapping[str, Any]) -> Iterator[ShapeProblem]:
        """Requires exactly one kind."""
        named = [name for name in data if cls.is_kind(name)]
        if len(named) != 1 or data[named[0]] is None:
            yield from exactly_one(data, cls.registry.names, cls.noun)

    @classmethod
    def taken(cls, written: Mapping[str, Any]) -> Self:
        """Reads the settings of the named kind, too."""
        key, *others = (name for name in written if cls.is_kind(name))
        if others:
            raise NotReadError
        try:
            settings = cls.registry.load(key).model.read(written[key])
        except UserError as error:
            raise NotReadError from error
        return super().taken({name: written[name] for name in written if name != key}).with_settings(key, settings)

    @classmethod
    def validated(
        cls, data: Any, handler: Callable[[Any], Self | None], details: list[InitErrorDetails]
    ) -> Self | None:
        """Handles the settings of each named kind; the rest are fields."""
        from pydantic import ValidationError

        from millstream.spec import validation

        if not isinstance(data, Mapping):
            return super().validated(data, handler, details)
        kinds = [name for name in data if cls.is_kind(name)]
        chosen = {}
        for name in kinds:
            if data[name] is None:
                continue
            try:
                chosen[name] = validation.validate(cls.registry.load(name).model, data[name])
            except UserError as error:
                fault = ShapeProblem(codes.EXTENSION, (name,), str(error), _FITTING_PACKAGE)
                details.append(validation.shape_detail(fault))
            except ValidationError as failure:
                errors = failure.errors()
                details += [validation.field_detail({**error, "loc": (name, *error["loc"])}) for error in errors]
        model = super().validated({name: data[name] for name in data if name not in kinds}, handler, details)
        if model is None or len(chosen) != 1:
            return None
        ((key, settings),) = chosen.items()
        return model.with_settings(key, settings)

    def with_settings(self, key: str, settings: SpecModel) -> Self:
        """Adds the settings to the model that is being created."""
        self.__dict__.update(_key=key, _settings=settings)
        return self

    @classmethod
    def more_members(cls) -> Mapping[str, tuple[type[SpecModel], str]]:
        """The kinds."""
        names = cls.field_names()
        return {name: (kind.model, kind.meaning) for name, kind in cls.registry.all() if name not in names}

    def members(self) -> Iterator[tuple[str, Any]]:
        """The settings, too."""
        yield self.key, self.settings
        yield from super().members()

    def as_written(self, *, given_only: bool = False) -> dict[str, Any]:
        """The settings first."""
        return {self.key: self.settings.as_written(given_only=given_only), **super().as_written(given_only=given_only)}


def models_in(value: object, path: tuple[str | int, ...]) -> Iterator[tuple[PlainModel, tuple[str | int, ...]]]:
    """A model and the models within it, each with its place; `path` is that of the model."""
    if isinstance(value, PlainModel):
        yield value, path
        members: Iterable[tuple[str | int, object]] = value.members()
    elif isinstance(value, Mapping):
        members = value.items()
    elif isinstance(value, tuple):
        members = enumerate(value)
    else:
        return
    for name, member in members:
        # A source or sink within another, such as a fallback, is opened by itself.
        if not isinstance(member, Choice):
            yield from models_in(member, (*path, name))
