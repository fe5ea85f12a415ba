"""Values that a pipeline file refers to instead of containing them: tokens, passwords, addresses with secrets in them.

    headers: {Authorization: {env: TOKEN, prefix: "Bearer "}}
    password: {file: secrets/password}
    token: {secret: {name: warehouse, key: token}}

A reference remains a reference in everything that is stored or shown. The process that needs the value looks it up when
it opens the connector or program. Above it: the users of such values. Below it: the environment and files, among them
those of mounted Kubernetes Secrets.
"""

import os
import re
from collections.abc import Iterator, Mapping
from pathlib import Path as FilePath
from typing import Annotated, Any

from millstream import codes
from millstream.errors import UserError
from millstream.spec.problems import Finding, Path
from millstream.spec.values import Before, Chosen, SpecModel, Tag, Text, problem, text_check

VALUE_BYTES_MAX = 64 * 1024
"""Maximum size of a value in a file. It catches a wrong path to a large file."""

PLACEHOLDER = re.compile(r"\$\{[A-Za-z_][A-Za-z0-9_]*\}")
"""Syntax that other tools expand. A pipeline file expands nothing, so it would be used literally."""


SECRETS_VARIABLE = "MILLSTREAM_SECRETS"
"""Environment variable with the directory of Secrets, if it is not `SECRETS_DIR`."""

SECRETS_DIR = "/run/secrets/millstream"
"""Directory in which each Kubernetes Secret is mounted, under its name."""

_SECRET_NAME = re.compile(r"[a-z0-9]([-a-z0-9.]{0,251}[a-z0-9])?")
_SECRET_KEY = re.compile(r"(?!\.+\Z)[-_.A-Za-z0-9]{1,253}")
_SecretName = Annotated[
    Text,
    text_check(
        _SECRET_NAME.fullmatch,
        "is not the name of a Secret",
        "letters a-z, digits, '-' and '.', such as `warehouse`",
    ),
]
_SecretKeyName = Annotated[
    Text,
    text_check(
        _SECRET_KEY.fullmatch,
        "is not a key of a Secret",
        "letters, digits, '-', '_' and '.', such as `password`",
    ),
]


class SecretKey(SpecModel):
    """A key of a Kubernetes Secret. It is read from the file `NAME/KEY` in `/run/secrets/millstream`, where pods mount
    it, or in the directory that the environment variable `MILLSTREAM_SECRETS` names."""

    noun = "a key of a Secret"

    name: _SecretName
    """Name of the Secret."""
    key: _SecretKeyName
    """Key in the Secret."""


class Reference(SpecModel):
    """A value in an environment variable, a file, or a Kubernetes Secret: exactly one of them."""

    noun = "a reference"
    exactly_one_of = ("env", "file", "secret")

    env: Text | None = None
    """Name of an environment variable of the process that needs the value (`millstream run` passes its own environment
    to its vertices)."""
    file: Text | None = None
    """File that contains the value, relative to the pipeline file. One line break at its end is ignored."""
    secret: SecretKey | None = None
    """Key of a Kubernetes Secret. `{name: NAME, key: KEY}` in place of a reference, as Numaflow writes it, is the
    same."""
    prefix: str = ""
    """Text before the value, such as `"Bearer "`."""


def _with_secret(written: Any) -> Any:
    """Numaflow's notation of a key of a Secret, as a reference."""
    if isinstance(written, Mapping) and set(written) == {"name", "key"}:
        return {"secret": dict(written)}
    return written


def _never_text(written: Any) -> Any:
    """Like `_with_secret`, but refuses texts without showing the value, as the general message would."""
    if isinstance(written, str):
        what = "this value is a secret, which a pipeline file may only refer to"
        raise problem(codes.WRONG_TYPE, what, "`{env: NAME}`, `{file: PATH}` or `{secret: {name: NAME, key: KEY}}`")
    return _with_secret(written)


TextOrReference = Annotated[
    Annotated[str, Tag("text")] | Annotated[Reference, Tag("reference")],
    Chosen(lambda written: "reference" if isinstance(written, Reference | Mapping) else "text"),
    Before(_with_secret, str | Reference | SecretKey),
]
"""A text, or a reference to one: `{env: NAME}`, `{file: PATH}` or `{secret: {name: NAME, key: KEY}}`."""

Secret = Annotated[Reference, Before(_never_text, Reference | SecretKey)]
"""A value that is never in the file itself, but always a reference."""


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


def references_in(value: object) -> Iterator[Reference]:
    """All references in a value, at any depth."""
    if isinstance(value, Reference):
        yield value
    elif isinstance(value, SpecModel):
        for _, member in value.members():
            yield from references_in(member)
    elif isinstance(value, Mapping | tuple):
        for entry in value.values() if isinstance(value, Mapping) else value:
            yield from references_in(entry)


def referenced_files(value: object, base_dir: FilePath) -> Iterator[FilePath]:
    """The files of all references in a value, at any depth."""
    for reference in references_in(value):
        if reference.env is None:
            yield _file_of(reference, base_dir)


def missing(value: object, base_dir: FilePath) -> str | None:
    """Why a value cannot be looked up on this machine; None if it can, or if it is a text."""
    try:
        resolve(value, base_dir, "")
    except UserError as error:
        return str(error).removeprefix(": ")
    return None


def secret_in_file(name: str, field: str | None = None) -> str:
    """The note of `validate` on a secret in the pipeline file. `field`: what has to be a reference, if not `name`."""
    whole = f" for the whole `{field}`" if field is not None else ""
    return f"the value of `{name}` is in the pipeline file; use `{{env: NAME}}` or `{{file: PATH}}`{whole} instead"


def resolve(value: object, base_dir: FilePath, what: str) -> str:
    """The text of a value of the pipeline file.

    `what` names the setting in messages. Raises `UserError` if it cannot be looked up or is empty. No message contains
    the value.
    """
    if isinstance(value, str):
        return value
    assert isinstance(value, Reference), value
    if value.env is not None:
        text = os.environ.get(value.env, "")
        if not text:
            raise UserError(codes.SECRET_MISSING, f"{what}: the environment variable {value.env} is not set")
        return value.prefix + text
    path, absent = _file_of(value, base_dir), ""
    if value.secret is not None:
        what = f"{what}: key {value.secret.key} of the Kubernetes Secret {value.secret.name}"
        absent = f"; mount the Secret at {path.parent}, or name another directory in {SECRETS_VARIABLE}"
    return value.prefix + _contents(path, what, absent)


def _file_of(reference: Reference, base_dir: FilePath) -> FilePath:
    """The file of a reference that is not to the environment."""
    if reference.secret is not None:
        secrets = FilePath(os.environ.get(SECRETS_VARIABLE) or SECRETS_DIR)
        return secrets / reference.secret.name / reference.secret.key
    assert reference.file is not None, "one of the three is set"
    return base_dir / reference.file


def _contents(path: FilePath, what: str, absent: str) -> str:
    """The contents of a file. `absent`: advice if it does not exist."""
    try:
        with path.open("rb") as stream:
            data = stream.read(VALUE_BYTES_MAX + 1)
    except FileNotFoundError as error:
        raise UserError(codes.SECRET_MISSING, f"{what}: there is no file {path}{absent}") from error
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
