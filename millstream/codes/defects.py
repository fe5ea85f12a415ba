"""Codes for defects of Millstream itself: 7xxx."""

from __future__ import annotations

from millstream.codes.code import Code

_REPORT = "Run again with `--debug` and report the output, with the pipeline file and the logs (`millstream logs`)."

DEFECT = Code(
    7001,
    "A defect in Millstream",
    happened=("Something happened that the code did not expect. The message and the stack trace in the log say where."),
    data=(
        "A process that meets a defect stops; what it had not committed is done again at the next start. Nothing "
        "more is known about the data: check the account at the end of the run, which shows whether it balances."
    ),
    do=_REPORT,
)

UNBALANCED = Code(
    7002,
    "The account of a run does not balance",
    happened=(
        "At the end of a run, the inputs and what became of them are counted from the marks, and the two sums "
        "differ. The summary names the vertex or edge, and the difference."
    ),
    data=(
        "Records may be lost or counted twice, as many as the summary says. This check does not change what was "
        "written to sinks."
    ),
    do=("Keep the data directory as it is and compare your results with the input. " + _REPORT),
)

IMPOSSIBLE = Code(
    7003,
    "A part of Millstream was assembled wrongly",
    happened=(
        "A process was asked for something that the check of the pipeline should have refused, or that its caller "
        "should never ask for."
    ),
    data="The part was not opened, so nothing was read or written through it.",
    do=_REPORT,
)

SPARK_DRIVER_ANSWER = Code(
    7004,
    "The Spark driver gave an answer that does not fit",
    happened=(
        "A worker and the Spark driver of the pipeline do not understand each other: an answer ended early, or a "
        "request was refused that should be possible."
    ),
    data=(
        "The answer was not used. Records of the windows stay in the log of their lane and are computed "
        "again at the next start."
    ),
    do=("Make sure that workers and driver run the same version of Millstream. " + _REPORT),
)

BROKER_ANSWER = Code(
    7005,
    "The broker and Millstream disagree about a commit",
    happened=(
        "A commit was larger than a batch may be, or the broker acknowledged something other than what was sent."
    ),
    data=(
        "This process does not know whether the commit was stored. The next owner of the lane reads its mark, "
        "which shows it."
    ),
    do=("Check that the broker has a version that Millstream is tested with (docs/guarantees.md). " + _REPORT),
)

PROCESS_CRASHES = Code(
    7006,
    "A process of the run ends again and again",
    happened=(
        "A worker or the Spark driver ended several times by itself or by a crash, without progress in between, "
        "and reported nothing with a code of its own. The message has its last lines."
    ),
    data=(
        "What it had not committed waits in the buffers or in the source. Committed marks, buffers and results "
        "are unchanged."
    ),
    do=("Look at `millstream logs`, and at the system's log for a crash of a library. " + _REPORT),
)

PROCESS_HANGS = Code(
    7007,
    "A process of the run hangs again and again",
    happened=(
        "A process did not respond for too long, and was killed and replaced, several times without progress in "
        "between."
    ),
    data=(
        "What it had not committed waits in the buffers or in the source. Committed marks, buffers and results "
        "are unchanged."
    ),
    do=(
        (
            "Check whether the machine is overloaded, or a disk or file system does not respond. If neither, "
            + _REPORT[0].lower()
        )
        + _REPORT[1:]
    ),
)

EXPERIMENT_FAILED = Code(
    7008,
    "An experiment or a measurement could not be judged",
    happened="A benchmark or the verifier of `millstream chaos` did not come to a result, for a reason of its own.",
    data="It says nothing about your pipelines: experiments and measurements have data of their own.",
    do=_REPORT,
)
