"""Values that a pipeline file refers to instead of containing them: tokens, passwords, addresses with secrets in them.

    headers: {Authorization: {env: TOKEN, prefix: "Bearer "}}

A reference remains a reference in everything that is stored or shown. The process that needs the value looks it up when
it opens the connector or program. Above it: the users of such values. Below it: the environment and files.
"""

import os
import re
from collections.abc import Iterator, Mapping
from pathlib import Path as FilePath
from typing import Annotated, Any

from millstream import codes
from millstream.errors import UserError
from millstream.spec.problems import Finding, Path
from millstream.spec.rules import Chosen, Tag
from millstream.spec.values import ShapeProblem, SpecModel, Text, exactly_one

VALUE_BYTES_MAX = 64 * 1024
"""Maximum size of a value in a file. It catches a wrong path to a large file."""

PLACEHOLDER = re.compile(r"\$\{[A-Za-z_][A-Za-z0-9_]*\}")
"""Syntax that other tools expand. A pipeline file expands nothing, so it would be used literally."""


class Reference(SpecModel):
    """A value in an environment variable or a file."""

    noun = "a reference"

    env: Text | None = None
    """Name of an environment variable of the process that needs the value (`millstream run` passes its own environment
    to its vertices)."""
    file: Text | None = None
    """File that contains the value, relative to the pipeline file. One line break at its end is ignored."""
    prefix: str = ""
    """Text before the value, such as `"Bearer "`."""

    @classmethod
    def shape_problems(cls, data: Mapping[str, Any]) -> Iterator[ShapeProblem]:
        """One place."""
        yield from exactly_one(data, ("env", "file"), cls.noun)


class SecretKey(SpecModel):
    """A key of a Kubernetes Secret, as in Numaflow. Only used on Kubernetes."""

    name: Text
    """Name of the Secret."""
    key: Text
    """Key in the Secret."""


_SECRET_KEY = "kubernetes secret"
"""Not the name of any field: it becomes part of the place of a problem."""


def _kind(written: Any) -> str:
    if isinstance(written, Reference | SecretKey):
        return "reference" if isinstance(written, Reference) else _SECRET_KEY
    if isinstance(written, Mapping):
        return _SECRET_KEY if "name" in written or "key" in written else "reference"
    return "text"


TextOrReference = Annotated[
    Annotated[str, Tag("text")] | Annotated[Reference, Tag("reference")],
    Chosen(lambda written: "text" if _kind(written) == "text" else "reference"),
]
"""A text, or a reference to one: `{env: NAME}` or `{file: PATH}`."""

Secret = Annotated[
    Annotated[Reference, Tag("reference")] | Annotated[SecretKey, Tag(_SECRET_KEY)],
    Chosen(lambda written: _SECRET_KEY if _kind(written) == _SECRET_KEY else "reference"),
]
"""A value that is never in the file itself: `{env: NAME}`, `{file: PATH}` or a key of a Kubernetes Secret."""


_WRITTEN_FOR_OTHERS = frozenset(
    ("command", "args", "query", "matches", "conf", "avroSchema", "schema", "fields", "description", "metadata")
)
"""Fields whose text other programs read, where this syntax has its own meaning."""


def placeholders(value: object, path: Path = ()) -> Iterator[Finding]:
    """A problem for every text of a pipeline file that looks as if part of it should be expanded."""
    if isinstance(value, Mapping):
        for key, entry in value.items():
            if key not in _WRITTEN_FOR_OTHERS:
                yield from placeholders(entry, (*path, key))
    elif isinstance(value, list):
        for index, entry in enumerate(value):
            yield from placeholders(entry, (*path, index))
    elif isinstance(value, str) and (found := PLACEHOLDER.search(value)) is not None:
        name = found[0][2:-1]
        what = f"`{found[0]}` is not expanded: pipeline files have no variables"
        expected = f"`{{env: {name}}}` where a value may be a secret (see docs/spec.md), otherwise the value itself"
        yield Finding(codes.VALUE_MALFORMED, path, what, expected)


def referenced_files(value: object, base_dir: FilePath) -> Iterator[FilePath]:
    """The files of all references in a value, at any depth."""
    if isinstance(value, Reference):
        if value.file is not None:
            yield base_dir / value.file
    elif isinstance(value, SpecModel):
        for _, member in value.members():
            yield from referenced_files(member, base_dir)
    elif isinstance(value, Mapping | tuple):
        for entry in value.values() if isinstance(value, Mapping) else value:
            yield from referenced_files(entry, base_dir)


def missing(value: object, base_dir: FilePath) -> str | None:
    """Why a value cannot be looked up on this machine; None if it can, or if it is a text."""
    try:
        resolve(value, base_dir, "")
    except UserError as error:
        return str(error).removeprefix(": ")
    return None


def resolve(value: object, base_dir: FilePath, what: str) -> str:
    """The text of a value of the pipeline file.

    `what` names the setting in messages. Raises `UserError` if it cannot be looked up or is empty. No message contains
    the value.
    """
    if isinstance(value, str):
        return value
    if isinstance(value, SecretKey):
        raise UserError(
            codes.SECRET_MISSING,
            f"{what}: a Kubernetes Secret cannot be read outside Kubernetes; use `{{env: NAME}}` or `{{file: PATH}}`",
        )
    assert isinstance(value, Reference), value
    if value.env is not None:
        text = os.environ.get(value.env, "")
        if not text:
            raise UserError(codes.SECRET_MISSING, f"{what}: the environment variable {value.env} is not set")
        return value.prefix + text
    assert value.file is not None, "one of the two is there"
    return value.prefix + _contents(base_dir / value.file, what)


def _contents(path: FilePath, what: str) -> str:
    try:
        with path.open("rb") as stream:
            data = stream.read(VALUE_BYTES_MAX + 1)
    except FileNotFoundError as error:
        raise UserError(codes.SECRET_MISSING, f"{what}: there is no file {path}") from error
    except OSError as error:
        raise UserError(codes.SECRET_MISSING, f"{what}: {path} cannot be read: {error.strerror}") from error
    if len(data) > VALUE_BYTES_MAX:
        raise UserError(
            codes.SECRET_MISSING, f"{what}: {path} is larger than {VALUE_BYTES_MAX} bytes, the maximum size of a value"
        )
    try:
        text = data.decode()
    except UnicodeDecodeError as error:
        raise UserError(codes.SECRET_MISSING, f"{what}: {path} is not UTF-8") from error
    text = text.removesuffix("\n").removesuffix("\r")
    if not text:
        raise UserError(codes.SECRET_MISSING, f"{what}: {path} is empty")
    return text
