"""Lets Spark analyse the queries of a pipeline before anything runs.

Above it: `validate`, and the runner of the pipeline's Spark driver. Below it: a temporary Spark, or an existing one
that is asked through its client. Only pipelines with SQL need it: its imports take half a second.
"""

from __future__ import annotations

import logging
import tempfile
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from pathlib import Path as FilePath
from typing import TYPE_CHECKING, Any, NamedTuple

from millstream import codes
from millstream.importing import importing
from millstream.limits import MIB
from millstream.spec.models import Spark, Vertex
from millstream.spec.problems import Finding, Path
from millstream.wire.reduce.v1 import engine_pb2

if TYPE_CHECKING:
    from millstream_reduce.spark.settings import SparkSettings

Check = Callable[[engine_pb2.Program], Awaitable[engine_pb2.CheckResponse]]
"""Answers whether a program can run."""

_DRIVER_MEMORY_BYTES = 512 * MIB
"""Enough for analysing queries."""
_OF_CLUSTERS = ("spark.submit.", "spark.executor.", "spark.kubernetes.", "spark.yarn.", "spark.dynamicAllocation.")
"""Settings that decide where jobs run, not what queries mean."""


class Verdict(NamedTuple):
    """What Spark reports about all queries."""

    problems: list[Finding]
    notes: list[tuple[Path, str]]


def check_queries(vertices: Mapping[int, Vertex], spark: Spark | None) -> Coroutine[Any, Any, Verdict]:
    """Start a Spark on this machine, whatever Spark the pipeline uses, and ask it. Takes some seconds; used once in a
    process.

    Raises `InfrastructureError` if it does not start, `UserError` if it rejects the pipeline's settings.
    """
    from pyspark.logger import PySparkLogger

    from millstream_reduce.spark.jobs import check
    from millstream_reduce.spark.session import open_session

    async def verdict() -> Verdict:
        # It prints pages of Java stack traces for every wrong query.
        PySparkLogger.getLogger("SQLQueryContextLogger").setLevel(logging.CRITICAL)
        with tempfile.TemporaryDirectory(prefix="millstream-queries-") as directory:
            async with open_session(_analysis_settings(spark, FilePath(directory) / "spark")) as session:
                return await verdict_of(vertices, lambda program: session.run(check, program))

    return verdict()


def _sql_program() -> Callable[..., Any]:
    from millstream_reduce.config import sql_program

    return sql_program


async def verdict_of(vertices: Mapping[int, Vertex], check: Check) -> Verdict:
    """Ask about every query of the vertices, which are given by their places in the file."""
    sql_program = await importing(_sql_program)
    problems: list[Finding] = []
    notes: list[tuple[Path, str]] = []
    for index, vertex in vertices.items():
        if vertex.group_by is None or vertex.sql is None:
            continue
        answer = await check(sql_program(vertex.sql, keyed=vertex.group_by.keyed))
        path = ("spec", "vertices", index, vertex.key, "sql")
        problems += [_finding(path, problem) for problem in answer.faults]
        if answer.one_by_one:
            what = f"windows that close together are computed one by one, which is slower: {answer.one_by_one}"
            notes.append(((*path, "query"), what))
    return Verdict(problems, notes)


def _finding(path: Path, problem: str) -> Finding:
    """A finding at the query, or at the member of the value's format with which the problem begins."""
    for place, expected in _PLACES.items():
        if problem.startswith(f"{'.'.join(place)}: "):
            return Finding(codes.QUERY, (*path, *place), problem.partition(": ")[2], expected)
    return Finding(codes.QUERY, (*path, "query"), problem, "a query that Spark can run over the table `window`")


_PLACES: Mapping[tuple[str, ...], str] = {
    ("value", "fields"): "columns such as 'delay DOUBLE, origin STRING'",
    ("value",): "a format that can be decoded",
}


def _analysis_settings(spark: Spark | None, directory: FilePath) -> SparkSettings:
    from millstream_reduce.spark.settings import SparkSettings

    conf = spark.conf if spark is not None else {}
    # A setting's reference is a secret, which does not affect a query and need not exist here.
    kept = {name: value for name, value in conf.items() if isinstance(value, str) and not name.startswith(_OF_CLUSTERS)}
    return SparkSettings(
        directory, master="local[1]", driver_memory_bytes=_DRIVER_MEMORY_BYTES, conf=kept, name="queries"
    )
