"""Codes for an owner that was replaced: 6xxx."""

from __future__ import annotations

from millstream.codes.code import Code

LANE_TAKEN_OVER = Code(
    6001,
    "Another process has taken over the lane",
    happened=(
        "Each lane has one owner at a time. A process that opened the lane later owns it now, and this one was "
        "refused: there is a second run on the same broker, or a worker was replaced while it hung."
    ),
    data=("The refused commit had no effect. Nothing counts twice: the new owner continues from the mark."),
    do=(
        "After a worker hung there is nothing to do. Otherwise find the second run on this broker and end "
        "one of the two."
    ),
)

LOG_TAKEN_OVER = Code(
    6002,
    "Another process writes the log of the lane",
    happened="The directory of a reduce lane's log has segments of a newer owner.",
    data=(
        "What this process had not made durable was not acknowledged. The newer owner continues from the log and "
        "the mark."
    ),
    do=(
        "After a worker hung there is nothing to do. Otherwise make sure that no two workers use the same "
        "directory for windows."
    ),
)

OUTPUT_TAKEN_OVER = Code(
    6003,
    "Another process writes the output of the lane",
    happened="The output of a sink, such as the directory of a file sink, is used by a newer owner of the lane.",
    data=(
        "This process wrote nothing after that. The newer owner writes from the mark on, including what this one "
        "left unfinished."
    ),
    do=(
        "After a worker hung there is nothing to do. Otherwise find the second run of the pipeline and end "
        "one of the two."
    ),
)
