"""`millstream run --debug-function NAME`: which functions wait for a debugger, on which ports, and which cannot."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from difflib import get_close_matches
from importlib.util import find_spec

from millstream import codes
from millstream.errors import UserError
from millstream.ports import why_not
from millstream.spec.kinds import PlacedProgram
from millstream.spec.loading import LoadedPipeline
from millstream.spec.models import Vertex

HOST = "127.0.0.1"


def debugged_functions(loaded: LoadedPipeline, names: Sequence[str], first_port: int) -> dict[str, int]:
    """The port of replica 0 of each named vertex. Raises `UserError`, with what to do instead, if no debugger can be
    attached.
    """
    ports: dict[str, int] = {}
    port = first_port
    for name in dict.fromkeys(names):
        vertex = _vertex(loaded, name)
        _check_function(vertex)
        for taken in range(port, port + vertex.replicas):
            if (reason := why_not(taken, HOST)) is not None:
                raise UserError(
                    codes.PORTS_TAKEN,
                    f"--debug-function {name}: cannot listen for a debugger on {HOST}:{taken}: {reason}; choose "
                    "another --debug-port",
                )
        ports[name] = port
        port += vertex.replicas
    return ports


def _vertex(loaded: LoadedPipeline, name: str) -> Vertex:
    vertices = {vertex.name: vertex for vertex in loaded.graph.vertices}
    if name in vertices:
        return vertices[name]
    having = [vertex.name for vertex in vertices.values() if any(True for _ in vertex.programs)]
    near = get_close_matches(name, having, 1)
    meant = f"did you mean {near[0]}? " if near else ""
    raise UserError(
        codes.NOT_IN_PIPELINE,
        f"--debug-function {name}: pipeline {loaded.pipeline.name} has no such vertex; {meant}"
        f"Vertices with a function: {', '.join(having) or 'none'}",
    )


def _check_function(vertex: Vertex) -> None:
    placed = list(vertex.programs)
    refusals = [_refusal(one) for one in placed] or ["it has no function"]
    if None not in refusals:
        raise UserError(codes.OPTIONS_CONFLICT, f"--debug-function {vertex.name}: {'; '.join(filter(None, refusals))}")
    if any(one.beside and one.program.python is not None for one in placed) and find_spec("debugpy") is None:
        raise UserError(
            codes.EXTRA_NEEDED,
            f"--debug-function {vertex.name}: the package debugpy is not installed: `pip install 'millstream[debug]'`",
        )


def _refusal(placed: PlacedProgram) -> str | None:
    """Why no debugger can be attached to a program, and what to do instead; None if one can."""
    program = placed.program
    if program.python is not None and sys.platform != "linux":
        return "any user of this machine could attach a debugger, because only Linux tells who connects"
    if not placed.beside:
        return (
            "it runs inside Spark, which no debugger can attach to: call it in a test with "
            "`millstream_udf.testing.run_windows`, and debug the test"
        )
    if program.address is not None or program.container is not None:
        return "this run does not start it: attach a debugger where it runs"
    if program.python is None and program.command is None:
        return "it is a built-in function"
    if program.sandbox is not None and not program.network:
        return "no debugger can reach into its sandbox: remove `sandbox` from the pipeline file while you debug"
    return None
