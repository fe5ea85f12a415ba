"""docs/reduce.md says what is so: its examples are valid and do what it says, its numbers are those of the code."""

from __future__ import annotations

import json
import re
from pathlib import Path
from textwrap import indent
from typing import Any

import pytest

from millstream import limits
from millstream.account import LATE_REASON
from millstream.spec.graph import Graph
from millstream.spec.loading import load_text
from millstream.spec.spark import DRIVER_MEMORY, DRIVER_MEMORY_MIN
from millstream.spec.windows import EARLY_EVERY_S, LOG_BYTES_MIN, SPAN_MIN_S
from millstream_reduce.lane.units import WINDOW_EARLY, WINDOW_END, WINDOW_START
from millstream_reduce.spark.columns import COLUMNS
from millstream_reduce.spark.settings import LOCAL_TASKS_MAX
from millstream_udf.testing import run_reduce

PAGE = (Path(__file__).parents[3] / "docs/reduce.md").read_text(encoding="utf-8")
TEXT = " ".join(PAGE.split())
YAML = re.findall(r"```yaml\n(.*?)```", PAGE, re.DOTALL)
PYTHON = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
HEAD = "apiVersion: millstream.io/v1alpha1\nkind: Pipeline\nmetadata: {name: p}\nspec:\n"
REDUCE = (
    HEAD
    + "  vertices:\n    - {name: in, source: {generator: {}}}\n    - name: sum\n%s"
    + "    - {name: out, sink: {log: {}}}\n"
    + "  edges: [{from: in, to: sum}, {from: sum, to: out}]\n"
)


def test_the_first_example_is_a_pipeline() -> None:
    graph = load_text(YAML[0], "p.yaml").graph
    assert [str(vertex.group_by.window) for vertex in graph.reduces if vertex.group_by] == ["fixed 1h"]


@pytest.mark.parametrize("block", [block for block in YAML if block.startswith("udf:")])
def test_each_udf_is_a_reduce(block: str) -> None:
    loaded = load_text(REDUCE % indent(block, "      "), "p.yaml")
    assert [vertex.name for vertex in loaded.graph.reduces] == ["sum"]


def test_the_settings_of_spark_are_settings() -> None:
    (block,) = [block for block in YAML if block.startswith("spec:")]
    udf = "      udf: {python: 'a:f', groupBy: {window: {fixed: {length: 1h}}}}\n"
    spark = block.removeprefix("spec:\n")
    assert load_text(REDUCE % udf + spark, "p.yaml").pipeline.spec.spark is not None


def windows() -> list[str]:
    """First cells of the table of windows, early settings and storages, as YAML of `groupBy`."""
    return re.findall(r"^\| `((?:fixed|sliding|session|global): \{[^`]*\})` \|", PAGE, re.MULTILINE)


def test_the_kinds_of_windows_have_these_fields() -> None:
    found = {window.split(":")[0]: window for window in windows()}
    assert set(found) == {"fixed", "sliding", "session", "global"}
    for window in found.values():
        written = window
        for field in ("length", "slide", "timeout"):
            written = re.sub(rf"\b{field}\b", f"{field}: 1h", written)
        written = written.replace("trigger", "trigger: {every: 1h}").replace("accumulate", "accumulate: true")
        reduce_with(f"window: {{{written}}}")


def reduce_with(group_by: str) -> Graph:
    udf = f"      udf: {{python: 'a:f', groupBy: {{{group_by}}}}}\n"
    return load_text(REDUCE % udf, "p.yaml").graph


def test_what_stands_in_passing_is_valid_too() -> None:
    fixed = "window: {fixed: {length: 1h, streaming: true}}"
    for setting in ("early: {every: 10s}", "early: {count: 1000}", "keepInput: true", "keyed: true"):
        assert f"`{setting}`" in PAGE
        reduce_with(f"{fixed}, {setting}")
    for trigger in ("trigger: {count: N}", "trigger: {every: 1h}"):
        assert f"`{trigger}`" in PAGE
        reduce_with(f"window: {{global: {{{trigger.replace('N', '5')}}}}}")


def test_the_function_does_what_it_seems_to() -> None:
    (text,) = PYTHON
    names: dict[str, Any] = {}
    exec(compile(text, "docs/reduce.md", "exec"), names)
    (value,) = run_reduce(names["day"], ['{"leg": 1}', '{"leg": 2}'], keys=["N1"]).values
    assert json.loads(value) == {"plane": "N1", "legs": 2, "from": "1970-01-01T00:00:00+00:00"}


def test_the_table_has_these_columns() -> None:
    section = PAGE.partition("### SQL")[2].partition("### A Python")[0]
    rows = re.findall(r"^\| (`[a-z_]+`(?:, `[a-z_]+`)*) \|", section.partition("| `value.format`")[0], re.MULTILINE)
    assert {name for names in rows for name in re.findall(r"\w+", names)} == {"value", *COLUMNS}


@pytest.mark.parametrize(
    "said",
    [
        f"the reason `{LATE_REASON}`",
        f"header `{WINDOW_START}`, `{WINDOW_END}`",
        f"header `{WINDOW_EARLY}`",
        f"{limits.WINDOWS_PER_RECORD_MAX:,} windows may contain one record",
        f"| {limits.PANES_PER_WINDOW_MAX:,} |",
        f"| {limits.HAND_OVER_WINDOWS_MAX:,}, or {limits.HAND_OVER_BYTES_MAX // limits.MIB} MiB of records |",
        f"at least {LOG_BYTES_MIN // limits.MIB} MiB for each",
        f"a log is limited to {limits.LOG_BYTES_MAX >> 30} GiB",
        f"otherwise {limits.LOG_BYTES_MAX >> 30} GiB per lane",
        f"a result | {limits.RECORD_BYTES_MAX // limits.MIB} MiB",
        f"lengths are at least {SPAN_MIN_S * 1000:.0f} ms",
        f"`early: {{every: {EARLY_EVERY_S:.0f}s}}` (the default)",
        f"default {DRIVER_MEMORY >> 30}Gi, at least {DRIVER_MEMORY_MIN >> 20}Mi",
        f"one task per processor (2 to {LOCAL_TASKS_MAX})",
    ],
)
def test_numbers_and_names_are_those_of_the_code(said: str) -> None:
    assert said in TEXT
