"""Bytewax: a flow of one worker, from a file to a file."""

import bytewax.operators as op  # type: ignore[import-not-found]
from bytewax.connectors.files import FileSink, FileSource  # type: ignore[import-not-found]
from bytewax.dataflow import Dataflow  # type: ignore[import-not-found]
from state_jobs.counting import KEY, advance, begin


def _count(before: str | None, record: str) -> tuple[str, str]:
    begin()
    after = advance(before, record)
    return after, after


def get_flow(source: str, target: str) -> Dataflow:
    flow = Dataflow("peer")
    lines = op.input("in", flow, FileSource(source, batch_size=1000))
    counted = op.stateful_map("count", op.key_on("key", lines, lambda line: line[KEY]), _count)
    op.output("out", counted, FileSink(target))
    return flow
