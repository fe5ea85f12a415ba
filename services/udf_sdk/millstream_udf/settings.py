"""The settings of a function: `config` and `secrets` of its program in the pipeline file.

    settings = udf.config(Settings)      # at the top of a module, or as a class attribute; read when it is used
    key = udf.secret("api_key")          # in `setup`, or in the function

Above it: users' functions, and what starts or calls them. Below it: the environment of the process, in which Millstream
puts them; the first message of a stream, for a process that something else has started; or a test. A process has one
function, so it has one of them.
"""

from __future__ import annotations

import dataclasses
import difflib
import json
import os
import typing
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any, TypeVar, overload

if TYPE_CHECKING:
    from millstream_udf.misfits import Misfit

CONFIG_VARIABLE = "MILLSTREAM_UDF_CONFIG"
"""Environment variable with `config`, as JSON."""
SECRETS_VARIABLE = "MILLSTREAM_UDF_SECRETS"
"""Environment variable with `secrets`, as JSON. It is removed from the environment as soon as it is read, so that
neither a program that the function starts nor a listing of the environment has it."""

_T = TypeVar("_T")


class ConfigError(ValueError):
    """The config does not fit the type that the function reads it with, or is not known yet."""


class SecretError(LookupError):
    """The pipeline file gives the function no such secret, or its secrets are not known yet."""


@dataclass(frozen=True, eq=False)
class Settings:
    """What a function is configured with."""

    text: str = "{}"
    """The config: a JSON object."""
    secrets: Mapping[str, str] = field(default_factory=dict, repr=False)

    @cached_property
    def values(self) -> Mapping[str, Any]:
        """The config. Raises `ConfigError` for a text that is not a JSON object."""
        try:
            values = json.loads(self.text)
        except ValueError as error:
            raise ConfigError(f"the config is not JSON: {error}") from None
        if not isinstance(values, dict):
            raise ConfigError("the config is not a JSON object")
        return values


class _Process:
    """The settings of this process."""

    def __init__(self) -> None:
        self.held: Settings | None = None
        self.has_own = False
        """Whether they were in its environment."""
        self.kinds: list[Any] = []
        """The types with which the function reads its config."""


_PROCESS = _Process()


def take_environment() -> None:
    """Read the settings from the environment, once, unless they have come from elsewhere already."""
    if _PROCESS.held is not None:
        return
    config, secrets = os.environ.get(CONFIG_VARIABLE), os.environ.pop(SECRETS_VARIABLE, None)
    if config is None and secrets is None and _is_served_by_hand():
        return
    _PROCESS.held, _PROCESS.has_own = Settings(config or "{}", json.loads(secrets) if secrets else {}), True


def _is_served_by_hand() -> bool:
    """Whether this process was started to serve a function, but not by Millstream, whose first message has them."""
    names = ("MILLSTREAM_PIPELINE", "MILLSTREAM_UDF_CHECK")
    return "MILLSTREAM_UDF_SOCKET" in os.environ and not any(name in os.environ for name in names)


def take(config: str, secrets: Mapping[str, str]) -> None:
    """Take the settings from the first message of a stream, which has none if the process has its own."""
    held = current()
    if (not config and not secrets and _PROCESS.has_own) or (
        held is not None and (held.text, held.secrets) == (config or "{}", secrets)
    ):
        return
    _PROCESS.held = Settings(config or "{}", secrets)


def hold(settings: Settings) -> None:
    """Make these the settings of the process, until another call does."""
    _PROCESS.held = settings


@contextmanager
def held(settings: Settings) -> Iterator[None]:
    """Make these the settings of the process, until the context ends."""
    before, _PROCESS.held = _PROCESS.held, settings
    try:
        yield
    finally:
        _PROCESS.held = before


def current() -> Settings | None:
    """The settings of the process; None if they come with the first stream, and there was none."""
    take_environment()
    return _PROCESS.held


@overload
def config() -> Mapping[str, Any]: ...


@overload
def config(kind: type[_T]) -> _T: ...


def config(kind: Any = None) -> Any:
    """The `config` beside the function in the pipeline file: a mapping or, if there is a `kind`, an object of it.

    `kind` is what a record may have as its type: a dataclass, a TypedDict, a model of pydantic or msgspec. The config
    has its members and no others, which is checked by `millstream validate --import` and when the function starts.

    The result can be made anywhere, for example at the top of a module. It is read when it is used, and raises
    `ConfigError` if the config is not known yet: not before the first record, for a process that was not started by
    Millstream.
    """
    if kind is None:
        return _Untyped()
    _PROCESS.kinds.append(kind)
    return _Typed(kind)


def secret(name: str) -> str:
    """The value of a secret: `secrets` beside the function in the pipeline file refers to it. Raises `SecretError` if
    there is none of that name, or if secrets are not known yet: see `config`."""
    settings = current()
    if settings is None:
        raise SecretError(f"the secret {name} {_NOT_YET}")
    if name not in settings.secrets:
        known = f", which has {', '.join(sorted(settings.secrets))}" if settings.secrets else ""
        raise SecretError(
            f"there is no secret {name!r}: add it to `secrets` beside the function in the pipeline file{known}; in a "
            "test, to `secrets` of the call"
        )
    return settings.secrets[name]


_NOT_YET = (
    "is not known yet: Millstream did not start this process, and hands it over with the first records. Read it in the "
    f"function, or start the process with {CONFIG_VARIABLE} or {SECRETS_VARIABLE} in its environment, as JSON"
)


def _known() -> Settings:
    settings = current()
    if settings is None:
        raise ConfigError(f"the config {_NOT_YET}")
    return settings


class _Untyped(Mapping[str, Any]):
    """The config as a mapping."""

    __slots__ = ()

    def __getitem__(self, name: str) -> Any:
        return _known().values[name]

    def __iter__(self) -> Iterator[str]:
        return iter(_known().values)

    def __len__(self) -> int:
        return len(_known().values)

    def __repr__(self) -> str:
        return f"udf.config() {dict(self)!r}"


class _Typed:
    """The config as an object of a type, which it stands for: its attributes are those of the object. As a class
    attribute, it is the object itself."""

    def __init__(self, kind: Any) -> None:
        self.__dict__["_kind"] = kind
        self.__dict__["_read"] = (None, None)

    def _object(self) -> Any:
        settings = _PROCESS.held or _known()
        of, found = self.__dict__["_read"]
        if of is not settings:
            found = _object_of(self.__dict__["_kind"], settings)
            self.__dict__["_read"] = (settings, found)
        return found

    def __get__(self, instance: object, owner: type | None = None) -> Any:
        return self._object()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._object(), name)

    def __setattr__(self, name: str, value: object) -> None:
        raise AttributeError("the config cannot be changed")

    @property  # type: ignore[misc]  # for `isinstance`
    def __class__(self) -> Any:
        return self.__dict__["_kind"]

    def __eq__(self, other: object) -> bool:
        return bool(self._object() == (other._object() if type(other) is _Typed else other))

    def __hash__(self) -> int:
        return hash(self._object())

    def __repr__(self) -> str:
        return repr(self._object())

    def __getitem__(self, name: Any) -> Any:
        return self._object()[name]

    def __iter__(self) -> Iterator[Any]:
        return iter(self._object())

    def __len__(self) -> int:
        return len(self._object())

    def __bool__(self) -> bool:
        return bool(self._object())

    def __contains__(self, name: object) -> bool:
        return name in self._object()


@contextmanager
def declared() -> Iterator[list[Any]]:
    """The types with which what is imported in the context reads the config; complete when it ends."""
    kinds: list[Any] = []
    before = len(_PROCESS.kinds)
    yield kinds
    kinds += _PROCESS.kinds[before:]


def misfits(kinds: Sequence[Any] | None = None) -> list[Misfit]:
    """Why the config does not fit the types with which the function reads it; empty if it does, or is not known yet.
    `kinds`: these types; by default all that were declared in this process.

    Raises `ConfigError` if it is not a JSON object, and `TypeError` for a type that cannot be read from JSON.
    """
    settings = current()
    if settings is None:
        return []
    kinds = _PROCESS.kinds if kinds is None else kinds
    # Several places of a module may read it with the same type.
    kinds = [kind for place, kind in enumerate(kinds) if kind not in kinds[:place]]
    found = [misfit for kind in kinds if (misfit := _misfit(kind, settings)) is not None]
    if found or not kinds:
        return found
    names = " or ".join(map(_name_of, kinds))
    return [misfit.of(names) for misfit in _unknown(settings.values, kinds)]


def refusal(kinds: Sequence[Any] | None = None) -> str:
    """The same as a text; empty if it fits. Raises nothing."""
    try:
        return "; ".join(map(text_of, misfits(kinds)))
    except (TypeError, ConfigError) as error:
        return str(error)


def text_of(misfit: Misfit) -> str:
    """A misfit in a sentence."""
    return str(misfit).replace("the value", "`config`", 1)


def _misfit(kind: Any, settings: Settings) -> Misfit | None:
    from millstream_udf.misfits import Misfit

    _ = settings.values
    try:
        _decoded(kind, settings)
    except Misfit as misfit:
        return misfit
    return None


def _decoded(kind: Any, settings: Settings) -> Any:
    """Raises `Misfit`."""
    # What decodes is imported only for functions with types.
    from millstream_udf.typed_values import json_decoder

    return json_decoder(kind).one(settings.text.encode())


def _name_of(kind: Any) -> str:
    from millstream_udf.json_types import name_of

    return name_of(kind)


def _unknown(values: Mapping[str, Any], kinds: Sequence[Any]) -> Iterator[Misfit]:
    """Members that no type has, which are most often misspelt."""
    from millstream_udf.misfits import Misfit

    members: dict[str, list[Any]] = {}
    for kind in kinds:
        own = _members(kind)
        if own is None:
            return
        for name, hint in own.items():
            members.setdefault(name, []).append(hint)
    for name, value in values.items():
        if name not in members:
            near = difflib.get_close_matches(name, members, 1)
            hint = f"; did you mean `{near[0]}`?" if near else f"; it has {', '.join(members) or 'none'}"
            yield Misfit(f"is not a member of it{hint}", (name,))
        elif isinstance(value, dict):
            for misfit in _unknown(value, members[name]):
                yield misfit.below(name)


def _object_of(kind: Any, settings: Settings) -> Any:
    """The config as an object. Raises `ConfigError`."""
    from millstream_udf.misfits import Misfit

    try:
        return _decoded(kind, settings)
    except Misfit as misfit:
        raise ConfigError(text_of(misfit)) from None


def _members(kind: Any) -> Mapping[str, Any] | None:
    """The names that a type reads, each with its type; None if it also takes others, or if that is not known."""
    if not isinstance(kind, type):
        # Such as `Inner | None`.
        kinds = [one for one in typing.get_args(kind) if one is not type(None)]
        return _members(kinds[0]) if len(kinds) == 1 and type(None) in typing.get_args(kind) else None
    if fields := getattr(kind, "__pydantic_fields__", None):
        is_open = getattr(kind, "model_config", {}).get("extra") == "allow"
        if is_open or any(one.alias or one.validation_alias for one in fields.values()):
            return None
        return {name: one.annotation for name, one in fields.items()}
    if hasattr(kind, "__struct_encode_fields__"):
        return dict.fromkeys(kind.__struct_encode_fields__)
    if dataclasses.is_dataclass(kind) or typing.is_typeddict(kind):
        hints = typing.get_type_hints(kind)
        names = [one.name for one in dataclasses.fields(kind) if one.init] if dataclasses.is_dataclass(kind) else hints
        return {name: hints[name] for name in names}
    return None
