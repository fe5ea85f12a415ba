"""Converts the settings of a `generator` to the plan of its lanes."""

from __future__ import annotations

import base64
from datetime import UTC, datetime

from millstream.clock import MICROSECONDS
from millstream_connectors.generator.settings import GeneratorSource
from millstream_connectors.generator.source.lane import GeneratorPlan


def generator_plan(source: GeneratorSource) -> GeneratorPlan:
    """The plan for the settings of a `generator`."""
    step_s = source.event_time_step_s
    if step_s is None and source.start is not None and source.rpu:
        step_s = source.duration_s / source.rpu
    return GeneratorPlan(
        message_bytes=source.msg_size,
        records=source.records,
        records_per_s=source.rpu / source.duration_s,
        value=source.value,
        blob=base64.b64decode(source.value_blob) if source.value_blob is not None else None,
        key_count=source.key_count,
        step_us=step_s * MICROSECONDS if step_s is not None else None,
        start_us=_start_us(source.start) if source.start is not None else None,
        jitter_us=_microseconds(source.jitter_s),
        late_share=source.late_share,
        late_by_us=_microseconds(source.late_by_s),
        out_of_order_share=source.out_of_order_share,
        out_of_order_by_us=_microseconds(source.out_of_order_by_s),
        seed=source.seed,
    )


def _microseconds(seconds: float) -> int:
    return round(seconds * MICROSECONDS)


def _start_us(written: str) -> int:
    start = datetime.fromisoformat(written)
    return round((start if start.tzinfo is not None else start.replace(tzinfo=UTC)).timestamp() * MICROSECONDS)
