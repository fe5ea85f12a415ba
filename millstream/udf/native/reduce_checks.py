"""Checks whether an answer of a reduce function fits its groups. Pure; like `millstream.udf.checks`, for Spark's
tasks."""

from __future__ import annotations

from millstream.limits import ANSWER_RECORDS_MAX
from millstream.udf.checks import check_columns, in_column
from millstream_udf import columns
from millstream_udf.wire.udf.v1 import udf_pb2


def check_reduce_answer(answer: udf_pb2.SealedReduceAnswer) -> None:
    """Raises `ValueError` unless every column has an entry per result. `check_reduce_groups` must be called before."""
    count = sum(answer.counts)
    if count > ANSWER_RECORDS_MAX:
        raise ValueError(
            f"it has {count:,} results; at most {ANSWER_RECORDS_MAX:,} are allowed at once, and more in further answers"
        )
    in_column("values", columns.check_bytes, answer.values, count)
    check_columns(answer.keys, answer.headers, answer.tags, count)


def check_reduce_groups(answer: udf_pb2.SealedReduceAnswer, groups: int) -> None:
    """Raises `ValueError` unless the answer has at most `groups` groups, and each failure refers to one of them. Only
    then can an error in the rest of the answer be attributed to these groups."""
    if not answer.counts:
        raise ValueError("it contains no group")
    if len(answer.counts) > groups:
        raise ValueError(f"it contains {len(answer.counts)} groups, but {groups} are unanswered")
    failed = [failure.index for failure in answer.failures]
    if failed and max(failed) >= len(answer.counts):
        raise ValueError(f"a failure is for group {max(failed)} of {len(answer.counts)}")
    if len(set(failed)) != len(failed):
        raise ValueError("two failures are for one group")
