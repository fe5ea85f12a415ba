"""What is said of a function that has reported what it is, as the SDKs for Python and Go do."""

from __future__ import annotations

from typing import Any

import pytest

from millstream import codes
from millstream.codes.code import Code
from millstream.udf.sidecar import SidecarSpec
from millstream_runner.local.function_checks import Verdict, _judge, _Place

PATH = ("spec", "vertices", 1, "udf")
GO = {"function": "f", "kinds": ["map"], "takes": "", "gives": "", "language": "go", "states": []}
"""What a program with the SDK for Go reports."""
PYTHON = {**GO, "language": "python", "decorated": True, "tables": [], "streams": True, "counts": False, "config": []}
TOTAL = {"name": "total", "kind": "value"}
FUNCTION = {"vertex": "v", "role": "udf", "function": "f", "takes": "", "gives": ""}


def judged(report: dict[str, Any], **place: Any) -> Verdict:
    verdict = Verdict()
    spec = SidecarSpec(["./f"], "udf", "p", "v")
    _judge([_Place(spec, PATH, **{"kind": "map", "written": "./f", **place})], report, verdict)
    return verdict


@pytest.mark.parametrize(
    ("report", "place", "path", "code", "what"),
    [
        (
            PYTHON | {"states": [TOTAL]},
            {},
            (),
            codes.STATE_MISFIT,
            "`f` remembers `total`, and its vertex has no state",
        ),
        (GO, {"remembers": True}, ("state",), codes.STATE_MISFIT, "the vertex has `state`, and `f` declares none"),
        (GO, {"tables": ("r",)}, ("tables",), codes.STATE_MISFIT, "the SDK of `./f` does not know tables"),
        (
            PYTHON | {"tables": ["r"]},
            {"tables": ("q",)},
            ("tables",),
            codes.STATE_MISFIT,
            "`f` reads table `r`, and its vertex has no such table",
        ),
        (GO, {"streams": True}, ("streaming",), codes.FUNCTION_UNUSABLE, "the SDK of `./f` does not know `streaming`"),
        (
            PYTHON | {"streams": False},
            {"streams": True},
            ("streaming",),
            codes.FUNCTION_UNUSABLE,
            "`f` cannot send outputs while it makes them",
        ),
        (
            PYTHON | {"config": [{"path": ["a", 1], "what": "`config` does not fit"}]},
            {},
            ("config", "a", 1),
            codes.CONFIG_MISFIT,
            "`config` does not fit (read by `f`)",
        ),
    ],
)
def test_a_function_that_does_not_fit_its_vertex(
    report: dict[str, Any], place: dict[str, Any], path: tuple[Any, ...], code: Code, what: str
) -> None:
    (found,) = judged(report, **place).problems
    assert (found.code, found.path, found.what) == (code, (*PATH, *path), what)


def test_a_function_that_fits() -> None:
    for report in (GO, PYTHON, PYTHON | {"counts": True}):
        assert judged(report) == Verdict(functions=[FUNCTION])
    fitting = PYTHON | {"states": [TOTAL], "tables": ["r"]}
    assert not judged(fitting, remembers=True, tables=("r",)).problems
    assert not judged(PYTHON, streams=True).problems


def test_what_is_counted_in_spark_is_not_exported() -> None:
    reduce = {"kind": "reduce", "in_spark": True}
    ((path, note),) = judged(PYTHON | {"kinds": ["reduce"], "counts": True}, **reduce).notes
    assert path == PATH
    assert note == (
        "what `f` counts is not exported, because it runs inside Spark's Python workers: start it with `command` in "
        "place of `python`"
    )
    assert not judged(PYTHON | {"kinds": ["reduce"]}, **reduce).notes
