"""Codes for user-defined functions that fail, cannot be started, or break their protocol: 3xxx."""

from __future__ import annotations

from millstream.codes.code import Code

_INPUT_WAITS = (
    "Nothing that the function had not answered is acknowledged: it waits in the buffer before the vertex or its "
    "chain, or in the source, and is given to the function at the next start. Answers that were given count once."
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
        "The record is not acknowledged. It waits in the buffer before the vertex or its chain, or in the source, "
        "with everything behind it, and is given to the function again at the next start. What was committed before "
        "it counts once."
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
    happened=(
        "A user-defined source failed five times in a row: to open, to read, or to acknowledge what was committed. The "
        "message has its error."
    ),
    data=(
        "What it gave before is committed. Its input is where the function left it: whether it gives the same "
        "records again is up to the function."
    ),
    do="Correct the function, or what it reads from, and start again.",
)

SINK_FUNCTION_FAILED = Code(
    3004,
    "A sink function did not accept a record",
    happened=(
        "A user-defined sink failed for a record at every attempt of its retry policy, and the policy says "
        "stop. The message names the record."
    ),
    data=(
        "The record is kept and is given to the function again at the next start, as may be records around it that "
        "the function accepted since the last mark."
    ),
    do="Correct the function or its target; or give the sink a `fallback`, or set `retryStrategy.onFailure`.",
)

RECORD_MISFIT = Code(
    3005,
    "A record does not fit the type that its function takes",
    happened=(
        "The function takes values of a type (an annotation of its first parameter, or `decode=` of its "
        "decorator), and a value does not have it: it is not JSON, a field is missing, or a field holds something "
        "else. The message names the record, the field and its value. Another attempt would not help, so none was "
        "made."
    ),
    data=(
        "The function has not seen the record. If the pipeline stops because of it, it is not acknowledged and "
        "waits in the buffer before the vertex or its chain, or in the source. If the retry policy says so, it is a "
        "dead letter, or counted as dropped."
    ),
    do=(
        "Correct the program that writes such records; or let the type accept them: a default for a field that may "
        "be missing, `float | None`, `str`. Or set `udf.retryStrategy.onFailure` to send such records to a "
        "dead-letter edge or to drop them."
    ),
)

FUNCTION_NOT_STARTED = Code(
    3101,
    "A function does not start",
    happened=(
        "The process of a function ended before it answered, did not answer in time, or nothing answers at its "
        "address; or the function failed to open a lane, five times in a row. The message has its exit code and its "
        "last lines, or its error."
    ),
    data=_INPUT_WAITS,
    do=(
        "Start the function's command by hand in its working directory and see what it prints. Common causes are a "
        "missing module, an error at import, and a port or socket on which nothing listens. If it needs more time, set "
        "`startTimeout`."
    ),
)

FUNCTION_IMPORT = Code(
    3102,
    "A Python function cannot be imported or set up",
    happened=(
        "Importing the module of a reduce function raised an error, the module has no such function, or its setup "
        "failed in a process of Spark."
    ),
    data=_INPUT_WAITS,
    do=(
        "Correct the module; import it by hand with the Python that Spark's workers use. On a cluster, its code "
        "has to be on every machine."
    ),
)

STATE_MISFIT = Code(
    3109,
    "What a function remembers does not fit what is stored",
    happened=(
        "A function with states was started, and it declares other states than those that have stored values: another "
        "kind or encoding, a version that cannot read them, or none; or its vertex and the function do not agree on "
        "whether there are states."
    ),
    data=_INPUT_WAITS,
    do=(
        "Do what the message says: declare the state as it was, let the function convert old values (`migrate`), or "
        "give a new state another name. docs/udf.md has the details."
    ),
)

CONFIG_MISFIT = Code(
    3110,
    "The config of a function does not fit its type",
    happened=(
        "The function reads `config` of the pipeline file with a type (`udf.config(Settings)`), and the config lacks a "
        "member of it, has one with another type, or has one that the type does not have. The message names the member."
    ),
    data=_INPUT_WAITS,
    do=(
        "Correct `config` in the pipeline file, or the type in the function; a member with a default need not be "
        "given. `millstream validate --import` tells the line."
    ),
)

FUNCTION_KIND = Code(
    3103,
    "A function is of another kind than its vertex needs",
    happened="For example, the process serves a map where a sink is needed.",
    data=_INPUT_WAITS,
    do=("Name the right function, or serve it as the kind that the message asks for. docs/udf.md lists the kinds."),
)

FUNCTION_VERSION = Code(
    3104,
    "A function uses another version of the protocol",
    happened=(
        "The SDK that the function was built with and this Millstream have no version of the protocol in common."
    ),
    data=_INPUT_WAITS,
    do="Install an SDK of the same release as Millstream, and build the function again.",
)

FUNCTION_PROTOCOL = Code(
    3105,
    "A function breaks its protocol",
    happened=(
        "The process sent something that the protocol does not allow: an answer without a call, a second answer, "
        "bytes that are not a message. The SDK of Millstream does not do that; perhaps another program listens at "
        "its address."
    ),
    data=(_INPUT_WAITS + " The answer in question was not used."),
    do=(
        "Check that the address is that of the function. If you use your own SDK, compare it with "
        "docs/udf-protocol.md; otherwise report it."
    ),
)

FUNCTION_REFUSES = Code(
    3106,
    "A function's process refuses the stream",
    happened=(
        "The process ended the stream with an answer that would be the same next time: it does not serve this "
        "kind, or does not know such calls. The message has its answer."
    ),
    data=_INPUT_WAITS,
    do="See what the process reports, and docs/udf-protocol.md for what it has to serve.",
)

FUNCTION_MESSAGE_SIZE = Code(
    3107,
    "A message between vertex and function was too large",
    happened="A record, an answer or a group of a reduce is larger than one message of the protocol may be.",
    data=_INPUT_WAITS,
    do="Give smaller answers: several records instead of one, or a reference to data that is stored elsewhere.",
)

FUNCTION_POSITIONS = Code(
    3108,
    "A sink function does not keep positions",
    happened=(
        "A user-defined sink has `guarantee: exactlyOnce`, or kept positions when the pipeline started, and its "
        "function does not keep positions (any more)."
    ),
    data=_INPUT_WAITS,
    do=(
        "Write the sink as a class with open, write and flush, as docs/connectors/udsink.md shows; or remove "
        "`guarantee: exactlyOnce` and accept records twice after a crash."
    ),
)
