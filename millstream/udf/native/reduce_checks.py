"""Does an answer of a reduce function fit its groups? Pure; as `millstream.udf.checks`, for the tasks of Spark."""

from __future__ import annotations

from millstream.limits import ANSWER_RECORDS_MAX
from millstream.udf.checks import check_columns, in_column
from millstream_udf import columns
from millstream_udf.wire.udf.v1 import udf_pb2


def check_reduce_answer(answer: udf_pb2.SealedReduceAnswer) -> None:
    """Every column has an entry per result; what `check_reduce_groups` has seen is taken for right."""
    count = sum(answer.counts)
    if count > ANSWER_RECORDS_MAX:
        raise ValueError(
            f"it has {count:,} results; at most {ANSWER_RECORDS_MAX:,} are allowed at once, and more in further answers"
        )
    in_column("values", columns.check_bytes, answer.values, count)
    check_columns(answer.keys, answer.headers, answer.tags, count)


def check_reduce_groups(answer: udf_pb2.SealedReduceAnswer, groups: int) -> None:
    """It speaks of at most `groups` groups, and each failure of one of them: so much has to be right for what is wrong
    with the rest to be theirs."""
    if not answer.counts:
        raise ValueError("it contains no group")
    if len(answer.counts) > groups:
        raise ValueError(f"it contains {len(answer.counts)} groups, but {groups} are unanswered")
    failed = [failure.index for failure in answer.failures]
    if failed and max(failed) >= len(answer.counts):
        raise ValueError(f"a failure is for group {max(failed)} of {len(answer.counts)}")
    if len(set(failed)) != len(failed):
        raise ValueError("two failures are for one group")
