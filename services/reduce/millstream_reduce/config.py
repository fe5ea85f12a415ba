"""Translates the pipeline file's settings of a reduce for the windows and the engine. Pure.

Above it: the assembly. Below it: the spec's models. It opens nothing.
"""

from __future__ import annotations

import os

from millstream import codes
from millstream.clock import MICROSECONDS
from millstream.errors import MillstreamError
from millstream.plan.resolved import ResolvedPipeline
from millstream.record import LaneId
from millstream.spec.models import GroupBy, Sql, Vertex
from millstream.spec.programs import config_text
from millstream.wire.reduce.v1 import engine_pb2
from millstream_reduce.windows import WindowConfig


def window_config(group_by: GroupBy) -> WindowConfig:
    """Which records belong together."""
    window = group_by.window
    lateness_us = _us(group_by.allowed_lateness_s)
    if window.fixed is not None:
        return WindowConfig("fixed", length_us=_us(window.fixed.length_s), lateness_us=lateness_us)
    if window.sliding is not None:
        return WindowConfig(
            "sliding",
            length_us=_us(window.sliding.length_s),
            slide_us=_us(window.sliding.slide_s),
            lateness_us=lateness_us,
        )
    if window.session is not None:
        return WindowConfig(
            "session", timeout_us=_us(window.session.timeout_s), keyed=group_by.keyed, lateness_us=lateness_us
        )
    if window.global_ is None:
        raise MillstreamError(codes.IMPOSSIBLE, "a window is fixed, sliding, session or global")
    trigger = window.global_.trigger
    every_s = trigger.every_s if trigger is not None else None
    return WindowConfig(
        "global",
        count=trigger.count if trigger is not None else None,
        every_us=_us(every_s) if every_s is not None else None,
        accumulate=window.global_.accumulate,
        keyed=group_by.keyed,
        lateness_us=lateness_us,
    )


def log_bytes_max(vertex: Vertex) -> int | None:
    """The most bytes that one lane of the vertex may store in its log: its share of the storage of its replica. None:
    no bound."""
    return vertex.group_by.log_bytes_max(vertex.partitions, vertex.replicas) if vertex.group_by is not None else None


def program_of(
    resolved: ResolvedPipeline, lane: LaneId, replica: int, sidecar_address: str | None
) -> engine_pb2.Program:
    """How the lane's windows are computed. `sidecar_address`: that of the UDF that the vertex itself has started, if
    any."""
    udf = resolved.graph.vertex(lane.vertex).udf
    if udf is None or udf.group_by is None:
        raise MillstreamError(codes.IMPOSSIBLE, f"vertex {lane.vertex} is not a reduce")
    keyed, pipeline = udf.group_by.keyed, resolved.pipeline.name
    if udf.sql is not None:
        return sql_program(udf.sql, keyed=keyed)
    config = "" if udf.config is None else config_text(udf.config)
    if udf.python is not None:
        directory = os.path.abspath(resolved.base_dir / (udf.working_dir or "."))
        python = engine_pb2.PythonProgram(
            target=udf.python, directory=directory, pipeline=pipeline, vertex=lane.vertex, config=config
        )
        return engine_pb2.Program(keyed=keyed, python=python)
    address = udf.address or sidecar_address
    if address is None:
        raise MillstreamError(codes.IMPOSSIBLE, f"vertex {lane.vertex}: its program runs nowhere")
    program = engine_pb2.UdfProgram(
        address=address,
        pipeline=pipeline,
        vertex=lane.vertex,
        lane=lane.key,
        replica=replica,
        # A function that the vertex has started has it already.
        config=config if udf.address is not None else "",
    )
    return engine_pb2.Program(keyed=keyed, udf=program)


def sql_program(sql: Sql, *, keyed: bool) -> engine_pb2.Program:
    """A query over windows."""
    value = engine_pb2.ValueSchema(format="raw")
    if sql.value is not None:
        value = engine_pb2.ValueSchema(
            format=sql.value.format,
            fields=sql.value.fields or "",
            avro_schema=sql.value.avro_schema or "",
            delimiter=sql.value.delimiter or "",
        )
    return engine_pb2.Program(keyed=keyed, sql=engine_pb2.SqlProgram(query=sql.query, value=value, unsafe=sql.unsafe))


def _us(seconds: float) -> int:
    return round(seconds * MICROSECONDS)
