"""What Spark hands on of an error of ours, and what is made of it again."""

from __future__ import annotations

import traceback

import pytest

from millstream import codes
from millstream.codes.code import Code
from millstream.errors import DamageError, MillstreamError, RetryLaterError, UdfError, error_of, kind_of
from millstream.udf.native.reduce_stream import FunctionLostError
from millstream_reduce.spark.errors import JobFailedError, WindowError, meaning
from millstream_reduce.spark.sql import QueryError


class SparkTaskError(Exception):
    """What PySpark raises of a task: a text with the traceback of its Python worker."""


def in_a_task(error: MillstreamError) -> SparkTaskError:
    try:
        raise error
    except MillstreamError:
        text = traceback.format_exc()
    return SparkTaskError(
        f"An exception was thrown from the Python worker. Please see the stack trace below.\n{text}\n"
        "\tat org.apache.spark.api.python.BasePythonRunner$ReaderIterator.handlePythonException\n"
    )


@pytest.mark.parametrize(
    ("raised", "kind", "code"),
    [
        (DamageError(codes.SEGMENT_DAMAGED, "segment 3 of a log"), DamageError, codes.SEGMENT_DAMAGED),
        (UdfError(codes.FUNCTION_IMPORT, "m:f cannot be imported\nmore"), UdfError, codes.FUNCTION_IMPORT),
        # Classes that only the package knows are tried again, with the code where that fits.
        (FunctionLostError("it went away"), RetryLaterError, codes.FUNCTION_UNREACHABLE),
        (QueryError("no such column"), RetryLaterError, codes.SPARK_JOB),
    ],
)
def test_an_error_in_a_task_keeps_its_code(raised: MillstreamError, kind: type[MillstreamError], code: Code) -> None:
    found = meaning(in_a_task(raised))
    assert type(found) is kind
    assert isinstance(found, MillstreamError)
    assert found.code is code
    assert str(found) == str(raised).partition("\n")[0]


class Panic(BaseException):
    """As libraries in other languages raise them."""


def test_what_python_raised_is_told_in_its_own_words() -> None:
    def dies() -> None:
        raise Panic("index 3 out of bounds\nhelp: look there")

    try:
        dies()
    except Panic:
        text = traceback.format_exc()
    stack = "\tat org.apache.spark.api.python.BasePythonRunner.handle(R.scala:1)\n\tat java.base/java.lang.Thread.run()"
    in_a_job = f"An exception was thrown from the Python worker: {text}\n\n{stack}"
    in_a_subquery = (
        f"An error occurred while calling o1.getResult.\n: org.apache.spark.SparkException: in awaitResult\n{stack}\n"
        f"Caused by: org.apache.spark.api.python.PythonException: {text}\n{stack}"
    )
    for raised in (in_a_job, in_a_subquery):
        found = meaning(Exception(raised))
        assert isinstance(found, WindowError)
        assert found.reason.endswith("Panic: index 3 out of bounds")
        assert "in dies" in found.detail
        assert "java" not in found.detail


@pytest.mark.parametrize(
    ("raised", "is_unexplained"),
    [
        ("java.lang.IllegalStateException: out of luck", True),
        ("[SPARK_JOB_CANCELLED] Job 4 cancelled part of cancelled job tags millstream-1-5 SQLSTATE: XXKDA", False),
        ("java.io.IOException: No space left on device", False),
    ],
)
def test_what_no_window_can_cause_is_tried_again_without_blame(raised: str, is_unexplained: bool) -> None:
    found = meaning(Exception(f"Job aborted.\nCaused by: {raised}"))
    assert isinstance(found, RetryLaterError)
    assert isinstance(found, JobFailedError) is is_unexplained


def test_an_error_that_was_wrapped_on_a_server_is_found_in_its_text() -> None:
    cause = (
        "java.util.concurrent.ExecutionException: org.apache.spark.SparkArithmeticException: [DIVIDE_BY_ZERO] By zero."
    )
    found = meaning(Exception(f"Exception thrown in awaitResult:\nCaused by: {cause} SQLSTATE: 22012"))
    assert isinstance(found, WindowError)
    assert found.reason == "By zero."


def test_an_error_of_another_version_is_not_made_up() -> None:
    assert kind_of(DamageError(codes.SEGMENT_MISSING, "gone")) == "DamageError MS-5101"
    assert error_of("DamageError MS-5999", "gone") is None
    assert error_of("ForgottenError MS-5101", "gone") is None
