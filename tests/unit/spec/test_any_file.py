"""Whatever is done to a good file, loading gives a pipeline or readable problems with their lines."""

import copy
import io
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from ruamel.yaml import YAML

from millstream.spec import numaflow, yaml_text
from millstream.spec.loading import load_text
from millstream.spec.model import NotReadError
from millstream.spec.models import Pipeline
from millstream.spec.problems import Problem, SpecError
from millstream.spec.validation import validate

FILES = sorted((Path(__file__).parent / "pipelines").glob("*.yaml"))
ODD_VALUES: list[Any] = [
    None, 0, -1, 1.5, float("nan"), 10**30, True, "", "x", "1s", "{what}", [], {}, [None], {"": {}}, {"name": "cat"},
]  # fmt: skip
ODD_FIELDS = [
    "foo", "source", "sink", "udf", "kafka", "fallback", "limits", "container", "retryStrategy", "builtin",
    "groupBy", "window", "storage", "sql", "spark", "early", "keyed",
]  # fmt: skip


def yaml() -> YAML:
    return YAML(typ="safe", pure=True)


def places(value: Any) -> list[tuple[Any, Any]]:
    """Every (container, key) of a document."""
    members = list(value.items()) if isinstance(value, dict) else []
    members = list(enumerate(value)) if isinstance(value, list) else members
    return [(value, key) for key, _ in members] + [place for _, member in members for place in places(member)]


@st.composite
def damaged(draw: st.DrawFn) -> str:
    document = copy.deepcopy(yaml().load(draw(st.sampled_from(FILES)).read_text()))
    for _ in range(draw(st.integers(1, 3))):
        container, key = draw(st.sampled_from(places(document)))
        change = draw(st.sampled_from(["set", "remove", "add"]))
        if change == "set":
            container[key] = copy.deepcopy(draw(st.sampled_from(ODD_VALUES)))
        elif change == "remove" and len(document) > 1:
            del container[key]
        elif isinstance(container, dict):
            container[draw(st.sampled_from(ODD_FIELDS))] = copy.deepcopy(draw(st.sampled_from(ODD_VALUES)))
    text = io.StringIO()
    yaml().dump(document, text)
    return text.getvalue()


@pytest.mark.slow
@settings(deadline=None)
@given(damaged())
def test_a_damaged_file_loads_or_says_why(text: str) -> None:
    problems: tuple[Problem, ...] = ()
    try:
        load_text(text, "p.yaml")
    except SpecError as error:
        problems = error.problems
        refused = True
    else:
        refused = False
    assert refused is bool(problems)
    value = numaflow.sift(yaml_text.parse(text).value).value
    with suppress(NotReadError):
        assert Pipeline.read(value) == validate(Pipeline, value), "pydantic finds nothing wrong with what is read"
    for problem in problems:
        assert problem.line >= 1
        assert problem.column >= 1
        assert problem.what
        assert "Input should" not in problem.what, "pydantic's own words"
        assert problem.expected != "a value as described in the reference"
