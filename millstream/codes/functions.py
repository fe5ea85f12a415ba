"""Codes of functions of the user's that fail, cannot be started, or break their protocol: 3xxx."""

from __future__ import annotations

from millstream.codes.code import Code

_INPUT_WAITS = (
    "Nothing that the function had not answered is acknowledged: it waits in the buffer before the "
    "vertex and is given to the function at the next start. Answers that were given count once."
)

FUNCTION_FAILED = Code(
    3001,
    "A function failed on a record",
    happened=(
        "The function raised an error for a record, or gave an answer for it that cannot be used, at every "
        "attempt of its retry policy, and the policy says stop. The message names the record and has the "
        "function's traceback."
    ),
    data=(
        "The record is not acknowledged. It waits in the buffer before the vertex with all behind it, and is "
        "given to the function again at the next start. What was committed before it counts once."
    ),
    do=(
        "Correct the function and start again; or set `udf.retryStrategy.onFailure` to drop such records or "
        "to send them to a dead-letter edge."
    ),
)

WINDOW_FAILED = Code(
    3002,
    "A window could not be computed",
    happened=(
        "The function or query of a reduce failed for a window at every attempt, and the policy says stop. "
        "The message has the window, its key and the reason."
    ),
    data=(
        "The window has no result. Its records stay in the log of the lane and are computed again at the next start."
    ),
    do=(
        "Correct the function or the query and start again; or let `retryStrategy.onFailure` drop such "
        "windows or send them to a dead-letter edge."
    ),
)

SOURCE_FUNCTION_FAILED = Code(
    3003,
    "A source function failed again and again",
    happened="A user-defined source failed as many reads in a row as are allowed.",
    data=(
        "What it gave before is committed. What it reads from is where the function left it: whether that "
        "gives the same records again is up to the function."
    ),
    do="Correct the function, or what it reads from, and start again.",
)

SINK_FUNCTION_FAILED = Code(
    3004,
    "A sink function did not take a record",
    happened=(
        "A user-defined sink failed for a record at every attempt of its retry policy, and the policy says "
        "stop. The message names the record."
    ),
    data=(
        "The record is not acknowledged and is given to the function again at the next start, as may records "
        "around it that the function took since the last mark."
    ),
    do="Correct the function or its target; or give the sink a `fallback`, or set `retryStrategy.onFailure`.",
)

RECORD_MISFIT = Code(
    3005,
    "A record does not fit the type that its function takes",
    happened=(
        "The function takes values as a type (an annotation of its first parameter, or `decode=` of its "
        "decorator), and a value is not that: no JSON, a field missing, or one that holds something else. The "
        "message names the record, the field and what stands there. Another attempt would not help, so none "
        "was made."
    ),
    data=(
        "The function has not seen the record. Where the pipeline stops over it, it is not acknowledged and "
        "waits in the buffer before the vertex. Where the retry policy says so, it is in the dead letters, or "
        "counted as dropped."
    ),
    do=(
        "Correct what makes such records; or let the type take them: a default for a field that may be "
        "missing, `float | None`, `str`. Or set `udf.retryStrategy.onFailure` to send such records to a "
        "dead-letter edge or to drop them."
    ),
)

FUNCTION_NOT_STARTED = Code(
    3101,
    "A function does not start",
    happened=(
        "The process of a function ended before it answered, or gave no answer in time, or nothing answers "
        "at its address. The message has its exit code and its last lines."
    ),
    data=_INPUT_WAITS,
    do=(
        "Start the function's command by hand in its working directory: what it prints tells most. A module "
        "that is missing, an error at import and a port or socket that is not listened on are the common "
        "causes."
    ),
)

FUNCTION_IMPORT = Code(
    3102,
    "A Python function cannot be imported or set up",
    happened=(
        "Importing the module of a reduce function raised an error, or it has no such function, or its setup "
        "failed in a process of Spark's."
    ),
    data=_INPUT_WAITS,
    do=(
        "Correct the module; import it by hand with the Python that Spark's workers run. On a cluster, its "
        "code has to be on every machine."
    ),
)

FUNCTION_KIND = Code(
    3103,
    "A function is of another kind than its vertex needs",
    happened="The process serves a map where a sink is needed, say.",
    data=_INPUT_WAITS,
    do=(
        "Name the function that belongs there, or serve it as the kind that the message asks for. "
        "docs/udf.md has the kinds."
    ),
)

FUNCTION_VERSION = Code(
    3104,
    "A function speaks another version of the protocol",
    happened=(
        "The SDK that the function was built with, and this Millstream, do not have a version of the "
        "protocol in common."
    ),
    data=_INPUT_WAITS,
    do="Install an SDK of the same release as Millstream, and build the function again.",
)

FUNCTION_PROTOCOL = Code(
    3105,
    "A function breaks its protocol",
    happened=(
        "The process sent something that the protocol does not allow: an answer to no call, a second answer, "
        "bytes that are not a message. With the SDK of Millstream that does not happen; something else may "
        "listen at its address."
    ),
    data=(_INPUT_WAITS + " The answer in question was not used."),
    do=(
        "See that the address is that of the function. With an SDK of your own compare it with "
        "docs/udf-protocol.md; else report it."
    ),
)

FUNCTION_REFUSES = Code(
    3106,
    "A function's process refuses the stream",
    happened=(
        "The process ended the stream with an answer that would be the same next time: it does not serve "
        "this kind, or knows nothing of such calls. The message has what it said."
    ),
    data=_INPUT_WAITS,
    do="Look at what the process says, and at docs/udf-protocol.md for what it has to serve.",
)

FUNCTION_MESSAGE_SIZE = Code(
    3107,
    "A message between vertex and function was too large",
    happened="A record, an answer or a group of a reduce is larger than one message of the protocol may be.",
    data=_INPUT_WAITS,
    do="Give smaller answers: several records instead of one, or the name of what is stored elsewhere.",
)
