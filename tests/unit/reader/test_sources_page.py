"""docs/sources.md: its examples are sources."""

from __future__ import annotations

import re
from pathlib import Path
from textwrap import dedent, indent

import pytest

from millstream.spec.loading import load_text

PAGE = Path(__file__).parents[3] / "docs/sources.md"
EXAMPLES = re.findall(r"```yaml\n(.*?)```", PAGE.read_text(), re.DOTALL)
PIPELINE = """apiVersion: millstream.io/v1alpha1
kind: Pipeline
metadata: {name: example}
spec:
  vertices:
    - name: out
      sink: {blackhole: {}}
    - name: in
      source:
%s
  edges: [{from: in, to: out}]
"""


def kind_of(example: str) -> str:
    # Where it shows members next to the kind, it shows the whole source.
    if example.startswith("source:\n"):
        example = dedent(example.removeprefix("source:\n"))
    source = load_text(PIPELINE % indent(example, " " * 8), PAGE).pipeline.vertex("in").source
    assert source is not None
    return source.kind


@pytest.mark.parametrize("example", EXAMPLES)
def test_examples_are_what_a_user_may_write(example: str) -> None:
    assert kind_of(example) in example


def test_the_page_has_examples_of_every_built_in_source() -> None:
    assert {kind_of(example) for example in EXAMPLES} == {"generator", "file", "http"}
