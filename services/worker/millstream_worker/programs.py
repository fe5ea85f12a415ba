"""The user's programs of a vertex: which programs it has, and how each of them is started.

Above it: the assembly. Below it: sidecars and built-ins. This module knows the ways in which the spec names a program.
"""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path

from millstream import codes
from millstream.errors import MillstreamError, UserError
from millstream.limits import ANSWER_RECORDS_MAX, FUNCTION_SECRETS_BYTES_MAX, KIB
from millstream.plan.resolved import ResolvedPipeline
from millstream.sandbox import DATA_DIRECTORIES, Confinement
from millstream.spec.models import Program, Transformer, Udf
from millstream.spec.programs import config_text
from millstream.spec.protocols import FunctionKind
from millstream.spec.references import Secret, referenced_files, resolve
from millstream.spec.tls import ProgramTls
from millstream.statistics import FunctionSeries, SidecarStatistics
from millstream.udf.builtin import open_builtin
from millstream.udf.function import LocalFunction, open_local_function, open_remote_function
from millstream.udf.program_lines import parse_line
from millstream.udf.protocol import ClientTls, StreamName, UdfClient, protocol_of
from millstream.udf.settings import FunctionSettings, secrets_text
from millstream.udf.sidecar import START_TIMEOUT_S, HeldUp, LogLine, SidecarSpec, python_command
from millstream.udf.sources import OnChange
from millstream.udf.streams import MapStream
from millstream_udf.log_form import LEVEL_VARIABLE
from millstream_udf.returned_values import OUTPUTS_VARIABLE

log = logging.getLogger(__name__)

PROGRAM_LOG = logging.getLogger("millstream.program")
"""Logs the output of the user's programs."""


CONCURRENCY_VARIABLE = "MILLSTREAM_UDF_CONCURRENCY"
"""Tells the SDK how many records of a stream to process concurrently, if the spec sets it."""
VALUES_VARIABLE = "MILLSTREAM_UDF_VALUES"
"""With the value `hidden`, tells the SDK that messages must not show the contents of records."""


@dataclass(frozen=True, slots=True)
class Development:
    """Settings for authors who run their functions on their own machine."""

    on_change: OnChange = OnChange.IGNORE
    """What to do when a file of a function changes."""
    debugged: Mapping[str, int] = field(default_factory=dict)
    """Vertices whose functions wait for a debugger, with the port of replica 0; replica n uses the n-th after it."""
    on_held_up: Callable[[HeldUp | None], None] = lambda by: None
    """Called when a function of the replica waits for a person, and with None when it no longer does."""
    on_slow: Callable[[str, bool], None] = lambda vertex, is_slow: None
    """Called with the vertex of a function whose oldest call has had no answer for long, and when it no longer has."""

    def of(self, spec: SidecarSpec) -> SidecarSpec:
        """The spec of a program, with these settings applied."""
        port = self.debugged.get(spec.vertex)
        return replace(
            spec,
            on_change=self.on_change,
            debug_port=None if port is None else port + spec.replica,
            on_held_up=self.on_held_up,
            on_slow=partial(self.on_slow, spec.vertex),
        )


NOT_DEVELOPED = Development()


class Programs:
    """The running programs of one vertex, by role: udf, transformer, sink, fallback, source."""

    def __init__(self, programs: Mapping[str, Program], functions: Mapping[str, UdfClient]) -> None:
        self._programs = programs
        self._functions = functions
        """The programs that are not built-ins, by role."""

    def client(self, role: str) -> UdfClient | None:
        """The running program of that role; None if the vertex has none."""
        return self._functions.get(role)

    def reduce_address(self, name: StreamName) -> str | None:
        """Address at which Spark's tasks reach the reduce function beside this process; None if the vertex has none.

        Raises `UdfError` if the program is not a reduce function.
        """
        function = self._functions.get("udf")
        if not isinstance(function, LocalFunction):
            return None
        function.check_kind(FunctionKind.REDUCE, name)
        return function.address

    def open_map(
        self, role: str, kind: FunctionKind, name: StreamName, *, may_return_arrow: bool = False
    ) -> AbstractAsyncContextManager[MapStream]:
        """Open a stream to the map or source transform of that role. `may_return_arrow`: see `UdfClient`."""
        client, program = self.client(role), self._programs.get(role)
        if isinstance(program, Udf | Transformer):
            if client is not None:
                outputs_max = program.outputs_max or ANSWER_RECORDS_MAX
                if isinstance(program, Udf) and program.streaming:
                    # What yields its outputs yields no columns.
                    return client.open_streamed_map(name, outputs_max=outputs_max)
                return client.open_map(kind, name, outputs_max=outputs_max, may_return_arrow=may_return_arrow)
            if program.builtin is not None:
                return open_builtin(program.builtin, name)
        raise MillstreamError(codes.IMPOSSIBLE, f"vertex {name.vertex} has no {role}")

    def statistics(self) -> Mapping[str, SidecarStatistics]:
        """The statistics of those whose process runs beside this one, by role."""
        return {role: one.statistics() for role, one in self._functions.items() if isinstance(one, LocalFunction)}

    def metrics(self) -> Mapping[str, Sequence[FunctionSeries]]:
        """What the programs have counted, by role."""
        return {role: one.metrics.snapshot() for role, one in self._functions.items()}


@asynccontextmanager
async def open_programs(
    resolved: ResolvedPipeline,
    vertex: str,
    replica: int,
    hidden: Sequence[Path] = (),
    development: Development = NOT_DEVELOPED,
) -> AsyncIterator[Programs]:
    """Start every program of the vertex that is a separate process, and keep it running.

    `hidden`: paths that a sandbox hides in addition to the files of secrets.
    """
    programs = {placed.role: placed.program for placed in resolved.graph.vertex(vertex).programs if placed.beside}
    async with AsyncExitStack() as stack:
        functions: dict[str, UdfClient] = {}
        for role, program in programs.items():
            protocol = protocol_of(program.protocol)
            if program.address is not None:
                tls = _tls(resolved, f"vertex {vertex}: `tls` of its {role}", program.tls)
                remote = open_remote_function(
                    program.address,
                    protocol=protocol,
                    tls=tls,
                    timeout_s=program.start_timeout_s or START_TIMEOUT_S,
                    on_slow=partial(development.on_slow, vertex),
                    settings=settings_of(resolved, vertex, role, program),
                )
                functions[role] = await stack.enter_async_context(remote)
                continue
            spec = sidecar_spec(resolved, vertex, replica, role, program, hidden)
            if spec is not None:
                spec = development.of(spec)
                local = open_local_function(spec, protocol=protocol, log=program_logger(role))
                functions[role] = await stack.enter_async_context(local)
        yield Programs(programs, functions)


def _tls(resolved: ResolvedPipeline, what: str, tls: ProgramTls | None) -> ClientTls | None:
    """Resolve the certificates that the spec refers to."""
    if tls is None:
        return None

    def pem(name: str, value: Secret | None) -> bytes | None:
        return None if value is None else resolve(value, resolved.base_dir, f"{what}, {name}").encode()

    return ClientTls(
        ca=pem("ca", tls.ca),
        certificate=pem("certificate", tls.certificate),
        key=pem("key", tls.key),
        server_name=tls.server_name,
    )


def settings_of(resolved: ResolvedPipeline, vertex: str, role: str, program: Program) -> FunctionSettings:
    """What the program is configured with. Raises `UserError` if a secret is missing, or if they are too large."""
    where = f"vertex {vertex}: `secrets` of its {role}"
    secrets = {name: resolve(value, resolved.base_dir, f"{where}, {name}") for name, value in program.secrets.items()}
    if (size := len(secrets_text(secrets).encode())) > FUNCTION_SECRETS_BYTES_MAX:
        raise UserError(
            codes.SECRET_MISSING,
            f"{where} have {size:,} bytes as JSON; at most {FUNCTION_SECRETS_BYTES_MAX // KIB}Ki reach a function",
        )
    return FunctionSettings("" if program.config is None else config_text(program.config), secrets)


def sidecar_spec(
    resolved: ResolvedPipeline, vertex: str, replica: int, role: str, program: Program, hidden: Sequence[Path] = ()
) -> SidecarSpec | None:
    """How to start the program; None for a built-in. `hidden`: see `open_programs`.

    Raises `UserError` if a value of its environment is missing, and for a container image.
    """
    if program.container is not None:
        raise UserError(
            codes.FUNCTION_IN_CONTAINER,
            f"vertex {vertex}: its {role} is a container image, but this process does not start containers. Start "
            "it beside this process and set its `address`, or use `command` or `python`",
        )
    if program.python is not None:
        command = python_command(program.python)
    elif program.command is not None:
        command = list(program.command)
    else:
        return None
    env = {
        variable.name: resolve(
            variable.value,
            resolved.base_dir,
            f"vertex {vertex}: `env` of its {role}, variable {variable.name}",
        )
        for variable in program.env
    }
    concurrency = resolved.pipeline.concurrency_of(resolved.graph.vertex(vertex)) if role == "udf" else None
    if concurrency is not None:
        env[CONCURRENCY_VARIABLE] = str(concurrency)
    if (outputs_max := getattr(program, "outputs_max", None)) is not None:
        env[OUTPUTS_VARIABLE] = str(outputs_max)
    if not resolved.pipeline.spec.logging.values:
        env[VALUES_VARIABLE] = "hidden"
    env |= settings_of(resolved, vertex, role, program).environment()
    env.setdefault(LEVEL_VARIABLE, logging.getLevelName(PROGRAM_LOG.getEffectiveLevel()).lower())
    return SidecarSpec(
        command=command,
        role=role,
        pipeline=resolved.pipeline.name,
        vertex=vertex,
        replica=replica,
        env=env,
        cwd=resolved.base_dir / (program.working_dir or Path()),
        held=_held(resolved, program, hidden),
        start_timeout_s=program.start_timeout_s or START_TIMEOUT_S,
        timeout_s=program.timeout_s,
    )


def _held(resolved: ResolvedPipeline, program: Program, hidden: Sequence[Path]) -> Confinement:
    """The limits of the program, and the files that it can see."""
    base_dir = resolved.base_dir
    return Confinement(
        limits=program.limits.given if program.limits is not None else {},
        strict=program.sandbox is not None,
        network=program.network,
        readable=tuple(base_dir / name for name in program.readable),
        hidden=(
            *hidden,
            *referenced_files(resolved.pipeline.spec, base_dir),
            # Data directories are created here by default, including those of other pipelines.
            *(place / DATA_DIRECTORIES for place in {base_dir, base_dir / (program.working_dir or Path())}),
        ),
    )


def program_logger(role: str) -> LogLine:
    def line(stream: str, text: str) -> None:
        entry = parse_line(text)
        if PROGRAM_LOG.isEnabledFor(entry.level):
            PROGRAM_LOG.handle(entry.record(PROGRAM_LOG.name, {"role": role, "stream": stream}))

    return line
