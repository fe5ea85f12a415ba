"""The JSON schema beside the loader: an editor accepts what `millstream validate` accepts, and refuses what it can.

The schema knows shapes: fields, types, allowed values. What goes together, what names refer to, and how a text is
written (a duration, a size, a name) are the loader's to judge. Numaflow's fields that have no effect here are in the
loader's notes and not in the schema.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import jsonschema_rs
import pytest
from hypothesis import given, settings

from millstream import codes
from millstream.codes.code import Code
from millstream.spec import numaflow, yaml_text
from millstream.spec.loading import load_text
from millstream.spec.models import Pipeline
from millstream.spec.problems import SpecError
from millstream.spec.schema import schema
from tests.unit.spec.strategies import pipelines
from tests.unit.spec.test_any_file import damaged

ROOT = Path(__file__).parents[3]
_BLOCK = re.compile(r"^```ya?ml[^\n]*\n(.*?)^```$", re.MULTILINE | re.DOTALL)
SHAPES = {codes.UNKNOWN_FIELD, codes.WRONG_TYPE, codes.NOT_ALLOWED}
"""What the schema can always tell, too. That none of several fields is there it cannot."""

HEAD = "apiVersion: millstream.io/v1alpha1\nkind: Pipeline\nmetadata: {name: p}\n"


def written() -> Iterator[tuple[str, str]]:
    """Every pipeline file of the repository that users see or start from."""
    for folder in ("examples", "services/runner/millstream_runner/cli/templates", "tests/unit/spec/pipelines"):
        for path in sorted((ROOT / folder).rglob("*.yaml*")):
            if "@package@" in {entry.name for entry in path.parent.iterdir()}:
                # It names a sink of the package that it is in, which is not installed here.
                continue
            yield str(path.relative_to(ROOT)), path.read_text(encoding="utf-8").replace("@name@", "p")
    for page in [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]:
        for number, match in enumerate(_BLOCK.finditer(page.read_text(encoding="utf-8"))):
            yield f"{page.relative_to(ROOT)}-{number}", match[1]


FILES = {name: text for name, text in written() if re.search(r"^kind: Pipeline$", text, re.MULTILINE)}


@cache
def validator() -> jsonschema_rs.Draft7Validator:
    return jsonschema_rs.Draft7Validator(schema())


def refusals(text: str) -> list[str]:
    """What the schema says is wrong."""
    document = numaflow.sift(yaml_text.parse(text).value).value
    return [f"{list(error.instance_path)}: {error.message}" for error in validator().iter_errors(document)]


def problems(text: str) -> set[Code]:
    """What the loader says is wrong."""
    try:
        load_text(text, "p.yaml")
    except SpecError as error:
        return {problem.code for problem in error.problems}
    return set()


def test_there_are_files_of_every_sort() -> None:
    for folder in ("README", "docs/how-to", "docs/tutorial", "examples", "services", "tests"):
        assert [name for name in FILES if name.startswith(folder)], folder


@pytest.mark.slow
@pytest.mark.parametrize("name", FILES)
def test_the_pipelines_that_users_start_from_are_accepted(name: str) -> None:
    assert refusals(FILES[name]) == []


@pytest.mark.slow
@settings(deadline=None, derandomize=True, max_examples=40)
@given(pipelines)
def test_what_the_models_accept_the_schema_accepts(document: dict[str, Any]) -> None:
    Pipeline.model_validate(document)
    assert [error.message for error in validator().iter_errors(document)] == []


def pipeline(
    *, source: str = "generator: {}", vertex: str = "", edge: str = "", spec: str = "", head: str = HEAD
) -> str:
    """A pipeline of two vertices, with more of what is given."""
    return (
        f"{head}spec:\n{spec}  vertices:\n    - {{name: in, source: {{{source}}}{vertex}}}\n"
        f"    - {{name: out, sink: {{log: {{}}}}}}\n  edges: [{{from: in, to: out{edge}}}]\n"
    )


@pytest.mark.slow
@pytest.mark.parametrize(
    ("text", "code"),
    [
        (pipeline(vertex=", colour: red"), codes.UNKNOWN_FIELD),
        (pipeline(source="generator: {rpm: 5}"), codes.UNKNOWN_FIELD),
        (pipeline(source="kafkaa: {}"), codes.UNKNOWN_FIELD),
        (pipeline(spec="  limits: {readBatch: 5}\n"), codes.UNKNOWN_FIELD),
        (pipeline(edge=", form: in"), codes.UNKNOWN_FIELD),
        (pipeline().replace("name: in, ", ""), codes.FIELD_MISSING),
        (pipeline(source="file: {}"), codes.FIELD_MISSING),
        (pipeline().replace(", to: out", ""), codes.FIELD_MISSING),
        (HEAD, codes.FIELD_MISSING),
        (f"{HEAD}spec: {{vertices: in, edges: []}}\n", codes.WRONG_TYPE),
        (pipeline(source="generator: {rpu: many}"), codes.WRONG_TYPE),
        (pipeline(vertex=", partitions: [1]"), codes.WRONG_TYPE),
        (pipeline(edge=", onFull: wait"), codes.NOT_ALLOWED),
        (pipeline(source="file: {paths: [a], format: xml}"), codes.NOT_ALLOWED),
        (pipeline(head=HEAD.replace("Pipeline", "Pipe")), codes.NOT_ALLOWED),
        (pipeline(head=HEAD.replace("v1alpha1", "v9")), codes.NOT_ALLOWED),
    ],
)
def test_a_wrong_shape_is_refused_by_both(text: str, code: Code) -> None:
    assert not problems(pipeline())
    assert code in problems(text)
    assert refusals(text)


@pytest.mark.slow
@settings(deadline=None, derandomize=True, max_examples=25)
@given(damaged())
def test_of_a_damaged_file_both_say_the_same(text: str) -> None:
    found = problems(text)
    refused = bool(refusals(text))
    if not found:
        assert not refused
    if found & SHAPES:
        assert refused
