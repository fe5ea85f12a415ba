"""Imports the functions of a pipeline, each in its own environment, and reports those that cannot run.

Above it: `millstream validate --import`. Below it: the processes that a run would start, with the same commands,
variables, directories and sandboxes. They are asked to report on their function and exit (`millstream_udf.checking`).
Only the module of a function is imported; the function is not called.
"""

from __future__ import annotations

import asyncio
import os
import re
import shutil
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from mmap import ACCESS_READ, mmap
from pathlib import Path as FilePath
from typing import Any

from millstream import codes
from millstream.errors import MillstreamError
from millstream.json_parser import parse_json
from millstream.limits import FUNCTION_IMPORT_TIMEOUT_S
from millstream.lines import LastLines, text_of
from millstream.plan.resolved import ResolvedPipeline
from millstream.processes import open_process
from millstream.resources import processors
from millstream.sandbox import confined
from millstream.spec.connectors import GuaranteeId
from millstream.spec.problems import Finding, Path, path_text
from millstream.spec.protocols import NATIVE
from millstream.spec.sinks import Sink
from millstream.udf.environment import inherited
from millstream.udf.program_lines import readable
from millstream.udf.protocol import protocol_of
from millstream.udf.sidecar import LINES_KEPT, SidecarSpec, python_command
from millstream.udf.socket_directory import open_socket_directory
from millstream_worker.programs import settings_of, sidecar_spec

CHECK_VARIABLE = "MILLSTREAM_UDF_CHECK"
"""Tells the SDK where to write its report."""
_PYTHON = re.compile(r"(python|pypy)[\d.]*")
_EXPECTED = "a function that `millstream run` can start; see docs/udf.md for the forms"


@dataclass(slots=True)
class Verdict:
    """The result of the check."""

    problems: list[Finding] = field(default_factory=list)
    notes: list[tuple[Path, str]] = field(default_factory=list)
    functions: list[dict[str, str]] = field(default_factory=list)
    """The functions that can be started: vertex, role, function, takes, gives."""


@dataclass(frozen=True, slots=True)
class _Place:
    """A program of the pipeline, and where the pipeline file names it."""

    spec: SidecarSpec
    path: Path
    kind: str
    """The kind of function that the vertex needs."""
    written: str
    """The function, as written in the pipeline file."""
    remembers: bool = False
    """Whether the function may remember something."""
    tables: Sequence[str] = ()
    """The tables that it may read."""
    streams: bool = False
    """Whether it has to send outputs while it makes them."""
    in_spark: bool = False
    """Whether Spark's Python workers import it."""
    demand: Path | None = None
    """Where the pipeline file has a `guarantee` that needs a function that keeps positions."""


async def check_functions(resolved: ResolvedPipeline, known: Collection[str] = ()) -> Verdict:
    """Check the functions. `known`: places in the pipeline that already have a problem."""
    verdict = Verdict()
    places = list(_places(resolved, known, verdict))
    starts: dict[Any, list[_Place]] = {}
    for place in places:
        spec = place.spec
        same = (tuple(spec.command), tuple(sorted(spec.env.items())), spec.cwd, spec.held)
        starts.setdefault(repr(same), []).append(place)
    at_once = asyncio.Semaphore(processors())

    async def check(some: list[_Place]) -> dict[str, Any]:
        async with at_once:
            return await _report(some[0].spec)

    reports = await asyncio.gather(*map(check, starts.values()))
    for some, report in zip(starts.values(), reports, strict=True):
        _judge(some, report, verdict)
    return verdict


def _places(resolved: ResolvedPipeline, known: Collection[str], verdict: Verdict) -> Iterator[_Place]:
    for index, vertex in enumerate(resolved.pipeline.spec.vertices):
        for placed in vertex.programs:
            program = placed.program
            path = ("spec", "vertices", index, vertex.key, *placed.path)
            if any(place.startswith(path_text(path)) for place in known):
                continue
            if program.address is not None or program.container is not None:
                verdict.notes.append((path, "the function is not imported, because it is not started on this machine"))
                continue
            if placed.beside:
                try:
                    spec = sidecar_spec(resolved, vertex.name, 0, placed.role, program)
                except MillstreamError:
                    # A missing variable or file, which is reported as a problem itself.
                    continue
            else:
                spec = _in_spark(resolved, vertex.name, placed.role, program)
            if spec is None:
                continue
            written = program.python or " ".join(spec.command)
            if program.protocol != NATIVE or not _can_report(spec):
                what = f"`{written}` is not a program that uses our SDK for Python or Go"
                verdict.notes.append((path, f"the function is not imported: {what}"))
                continue
            remembers = vertex.definition.has_state(vertex.settings)
            tables = tuple(vertex.definition.tables(vertex.settings))
            yield _Place(
                spec,
                path,
                program.function_kind.value,
                written,
                remembers,
                tables,
                streams=getattr(program, "streaming", False),
                in_spark=not placed.beside,
                demand=_demand(vertex.settings, program, path),
            )


def _can_report(spec: SidecarSpec) -> bool:
    """Whether it is a Python program, or has the name of the variable in its file, as with the SDK for Go."""
    name = spec.command[0]
    if _PYTHON.fullmatch(FilePath(name).name) is not None:
        return True
    found = shutil.which(name, path=spec.env.get("PATH")) if os.sep not in name else (spec.cwd or FilePath()) / name
    if found is None:
        return False
    try:
        with open(found, "rb") as file, mmap(file.fileno(), 0, access=ACCESS_READ) as contents:
            return contents.find(CHECK_VARIABLE.encode()) >= 0
    except (OSError, ValueError):
        # It does not exist, or it is empty.
        return False


def _demand(settings: object, program: Any, path: Path) -> Path | None:
    """Where a guarantee is required that only the function can give. `path`: of its sink."""
    if not isinstance(settings, Sink) or program is not settings.program or settings.guarantee != "exactlyOnce":
        return None
    return (*path[:-1], "guarantee") if settings.promise().id is GuaranteeId.BY_FUNCTION else None


def _in_spark(resolved: ResolvedPipeline, vertex: str, role: str, program: Any) -> SidecarSpec | None:
    """The function as Spark's Python workers import it."""
    if program.python is None:
        return None
    cwd = resolved.base_dir / (program.working_dir or FilePath())
    env = settings_of(resolved, vertex, role, program).environment()
    return SidecarSpec(python_command(program.python), role, resolved.pipeline.name, vertex, env=env, cwd=cwd)


async def _report(spec: SidecarSpec) -> dict[str, Any]:
    """What the process reported, or how it ended."""
    lines = LastLines(LINES_KEPT)
    with open_socket_directory() as directory:
        report, socket = directory / "report.json", directory / "udf.sock"
        environment = {
            **inherited(os.environ),
            **spec.held.environment,
            **spec.env,
            **protocol_of(NATIVE).environment(socket),
            CHECK_VARIABLE: str(report),
        }
        try:
            command = confined(
                spec.command,
                spec.held,
                cwd=spec.cwd or FilePath.cwd(),
                sockets=directory,
                search=environment.get("PATH", os.defpath),
            )
            exit_code: int | None = None
            async with open_process(
                command,
                name="the function",
                stdout=asyncio.subprocess.DEVNULL,
                stderr=lambda some: lines.add(*(text for line in some for text in readable(text_of(line)))),
                environment=environment,
                cwd=spec.cwd,
                group=True,
                is_tied=True,
            ) as process:
                try:
                    async with asyncio.timeout(FUNCTION_IMPORT_TIMEOUT_S):
                        exit_code = await process.wait()
                except TimeoutError:
                    if socket.exists():
                        return {"fault": "silent"}
        except MillstreamError as error:
            return {"fault": "start", "message": str(error)}
        try:
            contents: dict[str, Any] = parse_json(report.read_text())
        except (OSError, ValueError):
            return {"fault": "end", "exit_code": exit_code, "detail": lines.text("")}
    return contents


def _judge(places: list[_Place], report: Mapping[str, Any], verdict: Verdict) -> None:
    first, others = places[0], places[1:]
    also = f" (also of {', '.join(place.spec.vertex for place in others)})" if others else ""
    match report.get("fault"):
        case None:
            for place in places:
                _judge_kind(place, report, verdict)
            return
        case "silent":
            verdict.notes.append(
                (first.path, f"`{first.written}` serves a function{also} without describing it: it is not checked")
            )
            return
        case "missing":
            finding = Finding(codes.FUNCTION_NOT_FOUND, first.path, report["message"] + also, "an existing function")
        case "function":
            finding = Finding(codes.FUNCTION_UNUSABLE, first.path, report["message"] + also, _EXPECTED)
        case "import":
            package = report.get("package")
            expected = "a module that can be imported"
            if package:
                expected = f"that package, installed for the Python that runs the function, `{first.spec.command[0]}`"
            what = f"`{first.written}` cannot be imported{also}: {report['message']}"
            finding = Finding(codes.FUNCTION_IMPORT_RAISES, first.path, what, expected, report["detail"])
        case "start":
            what = f"`{first.written}` cannot be started{also}: {report['message']}"
            finding = Finding(codes.FUNCTION_IMPORT_RAISES, first.path, what, "a program that starts")
        case _:
            code = report["exit_code"]
            how = (
                f"did not end within {FUNCTION_IMPORT_TIMEOUT_S:g} s"
                if code is None
                else f"ended with exit code {code}"
            )
            what = f"`{first.written}` {how} without describing its function{also}"
            expected = "a module that is imported without waiting or exiting, or a script that calls `udf.serve`"
            finding = Finding(codes.FUNCTION_IMPORT_RAISES, first.path, what, expected, report["detail"])
    verdict.problems.append(finding)


def _state_findings(place: _Place, report: Mapping[str, Any]) -> Iterator[Finding]:
    """Whether the vertex and the function agree on whether there are states. Other SDKs may not say."""
    states = report.get("states")
    if states and not place.remembers:
        names = ", ".join(f"`{state['name']}`" for state in states)
        what = f"`{report['function']}` remembers {names}, and its vertex has no state"
        yield Finding(codes.STATE_MISFIT, place.path, what, "`state: {}` beside the function")
    elif place.remembers and states == []:
        what = f"the vertex has `state`, and `{report['function']}` declares none"
        yield Finding(codes.STATE_MISFIT, (*place.path, "state"), what, "a function with states, or no `state`")


def _table_findings(place: _Place, report: Mapping[str, Any]) -> Iterator[Finding]:
    """Whether the vertex has the tables that the function reads, and its SDK knows tables."""
    tables = report.get("tables")
    if tables is None and place.tables:
        what = f"the SDK of `{place.written}` does not know tables"
        yield Finding(codes.STATE_MISFIT, (*place.path, "tables"), what, "a function in Python, with the newest SDK")
    for name in tables or ():
        if name not in place.tables:
            what = f"`{report['function']}` reads table `{name}`, and its vertex has no such table"
            path = (*place.path, "tables") if place.tables else place.path
            yield Finding(
                codes.STATE_MISFIT, path, what, f"`tables: {{{name}: {{}}}}` beside the function, and an edge to it"
            )


def _streaming_findings(place: _Place, report: Mapping[str, Any]) -> Iterator[Finding]:
    """Whether the function can send its outputs as the vertex wants it, and its SDK knows that."""
    if not place.streams or report.get("streams"):
        return
    what = f"the SDK of `{place.written}` does not know `streaming`"
    expected = "no `streaming`, or a generator in Python, with the newest SDK"
    if "streams" in report:
        what = f"`{report['function']}` cannot send outputs while it makes them"
        expected = "a function of single records that remembers nothing, or no `streaming`"
    yield Finding(codes.FUNCTION_UNUSABLE, (*place.path, "streaming"), what, expected)


def _config_findings(place: _Place, report: Mapping[str, Any]) -> Iterator[Finding]:
    """Whether the config has the types with which the function reads it."""
    for misfit in report.get("config", ()):
        path = (*place.path, "config", *misfit["path"])
        what = f"{misfit['what']} (read by `{report['function']}`)"
        yield Finding(codes.CONFIG_MISFIT, path, what, "the members of that type, and no others")


_TAKEN_BY_ITS_ARGUMENTS = {"reduce": " (it has more than two arguments, or one called keys, records or window)"}
"""Why an undecorated function is taken for one of a kind, if that may be surprising."""


def _judge_kind(place: _Place, report: Mapping[str, Any], verdict: Verdict) -> None:
    if place.kind in report["kinds"]:
        told = {name: str(report[name]) for name in ("function", "takes", "gives")}
        verdict.functions.append({"vertex": place.spec.vertex, "role": place.spec.role, **told})
        if place.demand is not None and not report.get("keeps_positions"):
            what = f"`guarantee: exactlyOnce` is not possible here: `{report['function']}` does not keep positions"
            expected = "a class with open, write and flush (docs/connectors/udsink.md); or no `guarantee`"
            verdict.problems.append(Finding(codes.GUARANTEE_NOT_HELD, place.demand, what, expected))
        verdict.problems.extend(_state_findings(place, report))
        verdict.problems.extend(_table_findings(place, report))
        verdict.problems.extend(_streaming_findings(place, report))
        verdict.problems.extend(_config_findings(place, report))
        if place.in_spark and report.get("counts"):
            what = f"what `{report['function']}` counts is not exported, because it runs inside Spark's Python workers"
            verdict.notes.append((place.path, f"{what}: start it with `command` in place of `python`"))
        return
    served = " or ".join(report["kinds"])
    if report.get("language") == "go":
        expected = f"a program that serves a {place.kind}"
    else:
        expected = f"a function decorated with `@udf.{place.kind.replace(' ', '_')}`"
        if not report["decorated"]:
            served += _TAKEN_BY_ITS_ARGUMENTS.get(served, "")
    verdict.problems.append(
        Finding(
            codes.FUNCTION_UNUSABLE,
            place.path,
            f"`{report['function']}` is a {served}, and the vertex needs a {place.kind}",
            expected,
        )
    )
