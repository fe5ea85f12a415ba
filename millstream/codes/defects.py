"""Codes of defects of Millstream itself: 7xxx."""

from __future__ import annotations

from millstream.codes.code import Code

_REPORT = "Run again with `--debug` and report what it prints, with the pipeline file and the logs (`millstream logs`)."

DEFECT = Code(
    7001,
    "A defect in Millstream",
    happened=("Something happened that the code did not expect. The message and the stack trace in the log say where."),
    data=(
        "A process that meets a defect stops; what it had not committed is done again at the next start. "
        "Beyond that nothing is known about the data: look at the account at the end of the run, which says "
        "whether it balances."
    ),
    do=_REPORT,
)

UNBALANCED = Code(
    7002,
    "The account of a run does not balance",
    happened=(
        "At the end of a run, inputs and what became of them are counted from the marks, and the two sums "
        "differ. The summary names the vertex or edge, and the difference."
    ),
    data=(
        "Records may be lost or counted twice by the number that the summary names. What was written to "
        "sinks is not changed by this check."
    ),
    do=("Keep the data directory as it is and compare your results with the input. " + _REPORT),
)

IMPOSSIBLE = Code(
    7003,
    "A part of Millstream was put together wrongly",
    happened=(
        "A process was asked for something that the check of the pipeline should have refused, or that its "
        "caller should never ask for."
    ),
    data="The part was not opened, so nothing was read or written through it.",
    do=_REPORT,
)

SPARK_DRIVER_ANSWER = Code(
    7004,
    "The Spark driver gave an answer that does not fit",
    happened=(
        "A worker and the Spark driver of the pipeline do not understand each other: an answer ended in the "
        "middle, or a request was refused that should be possible."
    ),
    data=(
        "The answer was not used. Records of the windows stay in the log of their lane and are computed "
        "again at the next start."
    ),
    do=("See that workers and driver run the same version of Millstream. " + _REPORT),
)

BROKER_ANSWER = Code(
    7005,
    "The broker and Millstream disagree about a commit",
    happened=("A commit was made larger than a batch may be, or the broker acknowledged something else than was sent."),
    data=(
        "Whether the commit was stored is not known to this process. The next owner of the lane reads its "
        "mark, which says it."
    ),
    do=("See that the broker's version is one that Millstream is tested with (docs/guarantees.md). " + _REPORT),
)

PROCESS_CRASHES = Code(
    7006,
    "A process of the run ends again and again",
    happened=(
        "A worker or the Spark driver ended several times by itself or by a crash, without getting on in "
        "between, and said nothing that has a code of its own. The message has its last lines."
    ),
    data=(
        "What it had not committed waits in the buffers. Marks, buffers and results that were committed are "
        "as they were."
    ),
    do=("Look at `millstream logs`, and at the system's log for a crash of a library. " + _REPORT),
)

PROCESS_HANGS = Code(
    7007,
    "A process of the run hangs again and again",
    happened=(
        "A process gave no sign of life for too long, was killed and replaced, several times without getting "
        "on in between."
    ),
    data=(
        "What it had not committed waits in the buffers. Marks, buffers and results that were committed are "
        "as they were."
    ),
    do=(
        (
            "See whether the machine is overloaded or a disk or file system does not answer. If neither, "
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
