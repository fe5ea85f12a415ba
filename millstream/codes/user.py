"""Codes for problems that the user has to fix: commands and options (21xx), a pipeline that does not fit its stored
data (23xx), access to the broker (24xx), sources, sinks and records (25xx), functions, queries and Spark (26xx)."""

from __future__ import annotations

from millstream.codes.code import Code

_NOTHING_DONE = "Nothing was changed: the command ended before it did anything."

OPTION_VALUE = Code(
    2101,
    "An option has an invalid value",
    happened=("The value of an option, or of the environment variable for it, is out of range or has the wrong form."),
    data=_NOTHING_DONE,
    do=("Correct the value as the message says. `millstream COMMAND --help` and docs/cli.md describe each option."),
)

OPTIONS_CONFLICT = Code(
    2102,
    "Options do not go together",
    happened="Two options exclude each other, or one needs another that was not given.",
    data=_NOTHING_DONE,
    do=("Leave one of them out or give the missing one, as the message says. docs/cli.md says which belong together."),
)

NO_SUCH_RUN = Code(
    2103,
    "There is no such run here, or there are several",
    happened=(
        "The command inspects a run, and its directory contains none: runs are found below the directory from "
        "which they were started, in `.millstream/<pipeline>`. Or it contains several, and none was named. On "
        "another broker, nothing of that pipeline is stored."
    ),
    data=("Nothing was changed. This says nothing about data elsewhere: the command looked in a place without any."),
    do=(
        "Change to the directory from which `millstream run` was started, or name the run with the pipeline's "
        "file, `--pipeline NAME` or `--data-dir DIR`; for another broker, check that URL, account and pipeline are "
        "right."
    ),
)

NO_NUMBERS_YET = Code(
    2105,
    "The run has no figures yet",
    happened=("The run has just been started and has not written its progress yet, or it ended before it did."),
    data="Nothing was changed.",
    do="Try again in a second. If it stays, see `millstream logs runner`.",
)

PIPELINE_RUNS = Code(
    2106,
    "The pipeline is running",
    happened="The command changes stored data, which is only possible while the pipeline is not running.",
    data=_NOTHING_DONE,
    do="End the run with Ctrl-C, which drains it, repeat the command, then run the pipeline again.",
)

NOT_IN_PIPELINE = Code(
    2107,
    "The pipeline has nothing with that name",
    happened=(
        "A command or a worker was given the name of a vertex, edge, partition or replica that the pipeline "
        "does not have."
    ),
    data=_NOTHING_DONE,
    do="Use one of the names in the message. `millstream graph FILE` draws the pipeline with all of them.",
)

EDGE_HAS_NO_BUFFER = Code(
    2140,
    "The edge is chained and has no buffer",
    happened=(
        "The command was given an edge of a chain (with `chain: true`, or in a pipeline with `chain: true`), or a "
        "vertex behind one. Its records are passed on in memory, so there is nothing to show or to add records to."
    ),
    data=_NOTHING_DONE,
    do=(
        "Use an edge into or out of the chain: the message names them. Or write `chain: false` to give the edge a "
        "buffer, which is possible when no records wait."
    ),
)

NO_DEAD_LETTERS = Code(
    2108,
    "There are no dead letters to read there",
    happened=("The file or directory does not exist, or no file sink of the pipeline stores dead letters."),
    data=_NOTHING_DONE,
    do="Name the files that contain them. With `--stored` the command reads those that still wait in buffers.",
)

DEAD_LETTER_UNREADABLE = Code(
    2109,
    "A line is not a readable dead letter",
    happened=(
        "A line of the file is not an envelope as file sinks write it, or lacks something that is needed to replay "
        "the record."
    ),
    data="Nothing of this file was replayed. The file is unchanged.",
    do="Correct or remove the line that the message names. docs/sinks.md describes envelopes.",
)

PATH_EXISTS = Code(
    2110,
    "The target already exists",
    happened="The command creates new files, and never overwrites existing ones.",
    data="Nothing was written.",
    do="Choose another directory, or move away the existing files.",
)

RESOLVED_PIPELINE = Code(
    2111,
    "The resolved pipeline cannot be used",
    happened=(
        "A worker takes the JSON that `millstream compile` or `millstream run` writes; the file is something else, "
        "cannot be read, or comes from another version."
    ),
    data="The worker did not start. Nothing was changed.",
    do=(
        "Create the file again with `millstream compile pipeline.yaml`, with the version of Millstream that runs "
        "the workers."
    ),
)

EXTRA_NEEDED = Code(
    2112,
    "A package is not installed",
    happened="The operation needs a package that is only installed with an extra of Millstream.",
    data=("The process ended before it did anything with data; it continues from there when the package is installed."),
    do="Run the `pip install` that the message names, or use an image that has the package.",
)

EXTENSION = Code(
    2113,
    "An extension cannot be used",
    happened=(
        "A connector, ledger technology or another extension does not exist, cannot be imported, is offered by two "
        "packages, or is not an object of the right kind."
    ),
    data="The process did not open it, so nothing was read or written through it.",
    do=(
        "Install or correct the package that the message names; if two offer the same name, remove one. "
        "docs/extending.md says what an extension has to be."
    ),
)

PORTS_TAKEN = Code(
    2114,
    "Ports that the run needs are in use",
    happened=(
        "Other processes use ports of `--metrics-port-base` or of http sources. They are checked before anything "
        "is started."
    ),
    data=_NOTHING_DONE,
    do="End the programs that use them (`ss -ltnp` shows them), or choose other ports.",
)

OUTPUTS_OF_EARLIER_RUN = Code(
    2115,
    "A file sink's directory has files of another run",
    happened=(
        "A pipeline that starts over would write to a directory with the results of an earlier run, or of another "
        "pipeline. A file sink does not mix them: after a crash it could not tell which files are its own."
    ),
    data="Nothing was removed and nothing was written. The existing files are unchanged.",
    do=(
        "Run again with `--move-outputs`, which moves them away, or move them yourself together with the "
        "`.millstream` directory next to them; or set another path."
    ),
)

OUTPUT_IN_USE = Code(
    2116,
    "Another run writes to the same directory",
    happened="A file sink needs a directory of its own, and a run that is alive uses this one.",
    data="This run wrote nothing there. The other run is not affected.",
    do="End the other run, or give one of the two another path.",
)

TELEMETRY_SETTINGS = Code(
    2117,
    "Telemetry is set up in a way that is not supported",
    happened=(
        "An OpenTelemetry environment variable asks for an export that Millstream does not have; it exports over gRPC."
    ),
    data="The process did not start, so no data was touched.",
    do=(
        "Remove the variable that the message names, or set it as the message says. docs/telemetry.md has all of them."
    ),
)

CERTIFICATES = Code(
    2118,
    "Certificates cannot be used",
    happened=(
        "A certificate, a key or the certificates of an authority cannot be read, do not match, are not PEM files, "
        "or could not be created."
    ),
    data="No connection was opened with them, so no record went over it.",
    do=(
        "Correct the files that the message names. Certificates for tests are created by the program `openssl`, "
        "which has to be installed."
    ),
)

EXPERIMENT_DISK = Code(
    2119,
    "The disk of the experiment may not be filled",
    happened=(
        "`millstream chaos --faults disk` fills the file system of the experiment, and this one is large or used "
        "by others."
    ),
    data=_NOTHING_DONE,
    do="Name a directory on a small file system of its own, as the message shows.",
)

NO_SUCH_CODE = Code(
    2120,
    "Unknown error code",
    happened="`millstream explain` was given something that is not a code of this version.",
    data=_NOTHING_DONE,
    do=(
        "Look at the message again: a code is MS- and four digits. `millstream explain` without a code lists "
        "them all, and `millstream explain WORD` names those whose title has the word."
    ),
)

COMMAND_LINE = Code(
    2121,
    "The command line cannot be understood",
    happened=("There is no such command or option, an argument is missing, or an option does not take this value."),
    data=_NOTHING_DONE,
    do=(
        "Use the suggestion in the message. `millstream --help` lists the commands, and `millstream COMMAND "
        "--help` the options of one, with examples; `millstream completion SHELL` lets a shell complete them."
    ),
)

NO_SUCH_CONNECTOR = Code(
    2122,
    "Unknown source or sink",
    happened="The name is not a kind of source or sink of Millstream or of an installed package.",
    data=_NOTHING_DONE,
    do="`millstream connectors` lists them. Kinds of another package are found when that package is installed.",
)

NO_SUCH_TESTS = Code(
    2130,
    "No tests were found",
    happened="`millstream test` was given a place that does not exist, or that has neither tests nor cases.",
    data=_NOTHING_DONE,
    do="Name a directory with tests, a pipeline file, or a case file. docs/testing.md describes them.",
)

TEST_CASE = Code(
    2131,
    "A test case cannot be used",
    happened=(
        "A case file of `millstream test` is invalid, or does not fit its pipeline: it names a vertex that does "
        "not exist, or gives a source something that it never reads."
    ),
    data="The case was not run. A test does not touch the data of the pipeline.",
    do="Correct the file as the message says. docs/testing.md describes case files.",
)

CHANGED_WHERE_DATA_WAITS = Code(
    2301,
    "The pipeline was changed where records wait",
    happened=(
        "A vertex, edge, partition or window that was changed or removed still holds records that were accepted "
        "and are not processed. The run refuses to start, because they would not belong to anything."
    ),
    data="Nothing was changed. The waiting records are kept, and are processed when the pipeline runs as it was.",
    do=(
        "Run the pipeline as it was until they are processed (Ctrl-C drains it), then change it. Or start over "
        "with `--fresh`, which gives up what is stored, or use another `--data-dir`."
    ),
)

DATA_OF_ANOTHER_PIPELINE = Code(
    2302,
    "The data directory belongs to a different pipeline",
    happened="Names, kinds or settings that the stored data depends on differ from those in this pipeline file.",
    data="Nothing was changed. The stored data is kept.",
    do=(
        "Use the pipeline file that the data belongs to, or another `--data-dir`. `--fresh` removes the "
        "stored data and starts over."
    ),
)

SOURCE_CHANGED = Code(
    2303,
    "A source is not the one whose position is stored",
    happened=(
        "The kind of the source or the number of its partitions was changed, so the stored position does not say "
        "where the new one has to continue."
    ),
    data="Nothing was read. The stored position is kept.",
    do="Give the source its former kind and partitions, or start over with `--fresh`.",
)

OTHER_VERSION = Code(
    2304,
    "Stored data has the format of another version",
    happened="A position or a log was written by a version of Millstream whose format this one does not read.",
    data="Nothing was changed. The stored data is as the other version left it.",
    do=(
        "Run the version that wrote it; drain the pipeline there before you change versions. Or start over "
        "with `--fresh`."
    ),
)

LOG_OF_ANOTHER = Code(
    2305,
    "The directory contains a different log",
    happened=(
        "The windows of a reduce lane are logged in their own directory, and this one has the log of another lane "
        "or of another run, or a file is in the way."
    ),
    data="Nothing was written, and the existing log is unchanged.",
    do=(
        "Give each lane its own directory; restore the ledger that the log belongs to, or remove the directory to "
        "start the lane over, which gives up the windows in it."
    ),
)

WINDOWS_CHANGED = Code(
    2306,
    "The windows of a reduce were changed while some are open",
    happened="The log of the lane contains open windows with other settings than the pipeline now has.",
    data="Nothing was changed. The records of the open windows are kept.",
    do=(
        "Give the reduce its former windows and let the pipeline drain, then change them; or use a new data directory."
    ),
)

NOT_SET_BACK = Code(
    2307,
    "The watermark cannot be set back",
    happened="A reduce keeps its input (`keepInput`), or the input of a lane has ended, and event time with it.",
    data=_NOTHING_DONE,
    do=(
        "Start the pipeline over with `--fresh`, or leave the watermark as it is. docs/cli.md says when it can be "
        "set back."
    ),
)

NOT_REPLAYED = Code(
    2308,
    "The records cannot be replayed there",
    happened=(
        "The vertex has ended and its windows are closed, or it has never stored anything. Or its records are stored "
        "together with those of other edges, and some of them wait: only where none wait can they be stored apart, so "
        "that the replayed ones reach this vertex alone."
    ),
    data="Nothing was changed, and the dead letters are unchanged.",
    do=(
        "Run the pipeline before a replay, until no records wait; if it has ended, give the records to a new run as "
        "input."
    ),
)

STATE_NOT_CHANGED = Code(
    2309,
    "The state cannot be changed like this",
    happened=(
        "What a function remembers was to be changed from outside, by an import, an edit, or a change of partitions. "
        "An entry does not fit the states that the function declares, is not in the form of an export, or exceeds "
        "`state.maxBytes` or `state.maxBytesPerKey`; or a lane has something to finish first."
    ),
    data="The message says whether anything was changed. What was changed before it is committed, and stays.",
    do="Correct what the message names, and repeat the command: what it has changed already is not changed again.",
)

SAVEPOINT_NOT_TAKEN = Code(
    2310,
    "No savepoint can be taken",
    happened=(
        "The name is in use or cannot be one, or the pipeline is not at rest: records wait in its buffers or for a "
        "sink, or windows are open. A savepoint has what lanes remember, and not the records between them."
    ),
    data="Nothing was changed, and no savepoint was written.",
    do=(
        "Choose another name; or run the pipeline and end it with Ctrl-C, which drains it, then take the savepoint. "
        "Open windows close when newer records arrive or the sources end."
    ),
)

SAVEPOINT_NOT_USED = Code(
    2311,
    "The run cannot begin with the savepoint",
    happened=(
        "There is no savepoint of that name, the data directory has data of its own, or the pipeline has changed in "
        "a way that what the savepoint has does not fit."
    ),
    data="Nothing was changed. The savepoint is as it was.",
    do=(
        "Do what the message says: name another data directory or use `--fresh`, undo the change of the pipeline, or "
        "give up what a removed vertex remembers with `--forget`."
    ),
)

RESTORE_UNFINISHED = Code(
    2312,
    "A run was ended before it had everything from its savepoint",
    happened=(
        "A run with `--from-savepoint` was ended while it copied the savepoint into its data directory, which has "
        "only a part of it now."
    ),
    data="Nothing was read or processed since. The savepoint is as it was.",
    do="Run it again with the same `--from-savepoint`, which begins anew; or start over with `--fresh`.",
)

BROKER_ACCESS_FILE = Code(
    2401,
    "The broker's access file cannot be used",
    happened=(
        "The file with the credentials for the broker cannot be read, is not a YAML mapping, or has invalid fields."
    ),
    data="No connection was made. No data was touched.",
    do="Correct the file as the message says. deploy/README.md describes it.",
)

BROKER_ADDRESS = Code(
    2402,
    "The broker's address cannot be used",
    happened=(
        "The URL of the broker does not have the form that its technology needs, or contains a user or password, "
        "which every user of the machine could read on the command line."
    ),
    data="No connection was made. No data was touched.",
    do="Write the URL as the message shows, and put credentials into a file for `--broker-access`.",
)

BROKER_MESSAGE_SIZE = Code(
    2403,
    "The broker accepts only smaller messages than Millstream sends",
    happened="`max_payload` of the NATS server is smaller than the largest frame that a commit may hold.",
    data="The process refused to start, so no commit was tried.",
    do="Set `max_payload` of the server to the value in the message, and restart the server.",
)

BROKER_NAME = Code(
    2404,
    "A name cannot be used in the broker",
    happened=(
        "The name of a pipeline or vertex cannot be part of a subject or an account of the broker, or two "
        "pipelines need the same account."
    ),
    data="Nothing was created on the broker.",
    do="Rename it: letters, digits, `-` and `_`, and one name for each pipeline.",
)

RECORD_TOO_LARGE = Code(
    2501,
    "A record is larger than the broker accepts",
    happened="A source or a function gave a record that does not fit into one message of the broker.",
    data=(
        "The commit that held it was not made: its input is not acknowledged, is processed again at the next "
        "start, and stops there again until the record is smaller."
    ),
    do=("Make the record smaller: store large contents elsewhere and send their name. docs/spec.md gives the limits."),
)

COMMIT_TOO_LARGE = Code(
    2502,
    "One commit would have too many frames",
    happened=(
        "What has to be committed together, the outputs for one record on all edges and partitions, is more than "
        "one atomic batch of the broker can hold."
    ),
    data="The commit was not made: its input is not acknowledged and is processed again at the next start.",
    do="Let the function give fewer outputs for one input, or send them to fewer edges and partitions.",
)

TABLE_TOO_LARGE = Code(
    2517,
    "A table is larger than its limit",
    happened=(
        "Records came by an edge that a vertex reads as a table, and with them its keys and values would have more "
        "bytes than `maxBytes` of the table allows."
    ),
    data=(
        "The records that would make it larger are not acknowledged: they wait in the buffer before the vertex, and "
        "are read again at the next start. What was committed before them counts once."
    ),
    do=(
        "Raise `maxBytes` of the table and start again: the function and the worker have a copy of it for each "
        "partition. Or let less come by its edge, for example with a map before it that leaves out what the function "
        "does not need. A record with an empty value removes its key."
    ),
)

EVENT_TIME_AHEAD = Code(
    2503,
    "A record's event time is too far in the future",
    happened=(
        "A record is further ahead of the clock than `watermark.maxFuture` allows. It would move the watermark "
        "ahead, and all records after it would be late."
    ),
    data=(
        "The record was not accepted and the watermark did not follow it. The input is read again at the next "
        "start, and stops at the same record."
    ),
    do=(
        "Correct the record or the clock of its writer; raise `watermark.maxFuture`; or set `watermark.onFuture` "
        "to drop such records or send them to a dead-letter edge. docs/sources.md has the details."
    ),
)

RECORD_INVALID = Code(
    2504,
    "A source met a record that it cannot use",
    happened=(
        "A line, row or request is not what the source expects: it is not JSON, a column is missing, or an event "
        "time cannot be parsed. The message names the place."
    ),
    data=(
        "Neither the record nor anything after it was accepted. What was read before it is committed or is read again."
    ),
    do="Correct the input and start again, or set `onInvalid` of the source to `drop` or `deadLetter`.",
)

SOURCE_FILES_MISSING = Code(
    2505,
    "A file source has no files",
    happened="A path of the source names no file, or a pattern matches none.",
    data="Nothing was read.",
    do=(
        "Correct `paths`, which are relative to the directory of the pipeline file, or set `follow: true` to wait "
        "for files."
    ),
)

SOURCE_COLUMNS = Code(
    2506,
    "The columns of a file are not those of the pipeline",
    happened="The header of a CSV file lacks a column that the pipeline names, or is not a valid header.",
    data="Nothing of this file was read.",
    do="Correct the file or the pipeline; a file without a header needs `header: false`.",
)

TOO_MANY_FILES = Code(
    2507,
    "A file source matches too many files",
    happened="A source that follows files keeps a position for each of them, and their number is limited.",
    data=(
        "What was read up to here is committed or is read again at the next start; files beyond the limit "
        "were not read."
    ),
    do="Use narrower `paths` or more `partitions`, and move away files that are complete.",
)

HTTP_SOURCE_OPEN = Code(
    2508,
    "An http source would be open to every machine",
    happened="The source listens on an address that other machines reach, and asks senders for no credentials.",
    data="The source was not opened, so nothing was accepted.",
    do="Set `http.auth` or `http.tls.clientCa`; or `http.allowUnauthenticated: true` if this is intended.",
)

WEB_SETTINGS = Code(
    2509,
    "A connector has a URL or a header that cannot be sent",
    happened=(
        "A value that the pipeline takes from an environment variable or a file is not a URL, or not a valid "
        "header value."
    ),
    data="The source or sink was not opened. Nothing was sent.",
    do=("Correct the variable or file that the message names; a line break at the end of a file is a common cause."),
)

SINK_PATH = Code(
    2510,
    "A file sink may not use its directory",
    happened=(
        "The user that runs the pipeline cannot create, read or write the directory, or something else has its name."
    ),
    data=(
        "The failed step wrote nothing. Records wait in the buffer before the sink, and are written from its mark "
        "on when the directory can be used."
    ),
    do="Choose another path or change its permissions, then start again.",
)

SECRET_MISSING = Code(
    2511,
    "A referenced value is missing",
    happened=(
        "The pipeline refers to an environment variable, a file or a Kubernetes Secret for a value, such as a token, "
        "which is not set, cannot be read, is empty or is too large. A Secret is read from the file `NAME/KEY` in "
        "`/run/secrets/millstream`, or in the directory that the environment variable `MILLSTREAM_SECRETS` names."
    ),
    data="The part that needs the value was not opened, so nothing was read or written with it.",
    do=(
        "Set the variable, create the file, or mount the Secret, for the process that runs the vertex. The value "
        "itself is never printed."
    ),
)

CONNECTOR_SETTINGS = Code(
    2512,
    "A connector cannot work with its settings",
    happened=(
        "A source or sink refuses its settings or the state that it finds, for a reason that only you can remove."
    ),
    data=(
        "The lane stopped at what it has committed, and continues from there at the next start; what the target of "
        "a sink has received since its last mark may be delivered again."
    ),
    do="Change what the message names, then start again.",
)

TARGET_REFUSES = Code(
    2514,
    "The server of a source or sink refuses the connection",
    happened=(
        "The server answered but refused the login: it does not accept the user, password or certificate, the "
        "database does not exist, or the user lacks a permission."
    ),
    data=(
        "The lane stopped at what it has committed, or, at `validate --online`, nothing was started. Nothing of what "
        "failed is acknowledged."
    ),
    do=(
        "Correct what the message names: the user, where its password is stored, or its permissions on the server. "
        "`millstream validate --online` tries it without running anything."
    ),
)

TARGET_UNFIT = Code(
    2515,
    "What a source or sink names on its server is missing, or does not fit",
    happened=(
        "The server can be reached, but a table, a column, a topic or a queue that the settings name does not "
        "exist there, or has the wrong type or shape."
    ),
    data=(
        "The lane stopped at what it has committed, or, at `validate --online`, nothing was started. Nothing of what "
        "failed is acknowledged."
    ),
    do="Create or change it on the server, or correct the settings, as the message says; then start again.",
)

TARGET_OF_ANOTHER_RUN = Code(
    2516,
    "The target of a sink has records of another run",
    happened=(
        "The position that a sink keeps in its target was written by a pipeline of the same name with another data "
        "directory, or before `--fresh`. The two runs count records differently."
    ),
    data="This run wrote nothing. What the other run wrote is unchanged.",
    do=(
        "Give this run a target of its own, restore the data directory of the other run, or remove the position as "
        "the message says: then this run's records follow those of the other, from its first record on."
    ),
)

SINK_REFUSED = Code(
    2513,
    "A sink did not accept a record",
    happened=(
        "The target refused a record permanently, or the attempts of the retry policy are used up and the policy "
        "says stop. The message names the record."
    ),
    data=(
        "The record was not acknowledged. It waits in the buffer before the sink, with everything behind it, and "
        "is delivered at the next start; records around it that the target accepted since the last mark may be "
        "sent again."
    ),
    do=(
        "Correct the target or the record and start again; or give the sink a `fallback`, or set "
        "`retryStrategy.onFailure`."
    ),
)

FUNCTION_IN_CONTAINER = Code(
    2601,
    "A function is a container image, which this process cannot start",
    happened=(
        "Workers start functions as processes. A vertex with `container` needs a function that is already running."
    ),
    data="The vertex did not start. Its input waits.",
    do="Start the container next to the worker and set its `address`, or use `command` or `python`.",
)

FUNCTION_IMPORT_RAISES = Code(
    2607,
    "The module of a function cannot be imported",
    happened=(
        "`millstream validate --import` started the function as a run would, and its module raised an error, or "
        "the process ended or waited before the function was available. The most common cause is a package that is "
        "missing in the function's environment."
    ),
    data="Nothing was run, and no data was touched.",
    do=(
        "Correct the module, or install the package for the Python that runs the function: that of Millstream for "
        "`python`, the first word of `command` otherwise. The traceback begins with your own code."
    ),
)

FUNCTION_UNUSABLE = Code(
    2608,
    "A function cannot be called as it is written",
    happened=(
        "The function takes too many or too few arguments, is not async although it has to be, has an annotation "
        "with a type that no value can have or that cannot be sent on, needs a package that is not installed "
        "(`arrow=True`), or is of another kind than its vertex: for example a map where a sink is needed."
    ),
    data="Nothing was run, and no data was touched.",
    do="Change the function as the message says. docs/udf.md lists every form that a function may have.",
)

QUERY = Code(
    2603,
    "A query cannot run",
    happened=(
        "Spark refuses the SQL of a reduce: a syntax error, an unknown column or function, result columns that do "
        "not fit; or the fields of `value` cannot be decoded as it says."
    ),
    data=(
        "No window was computed with it. During a check nothing was started; in a run the windows stay in the log "
        "of their lane."
    ),
    do=(
        "Correct the query or `value` at the place that the message names. `millstream validate` checks it without "
        "a run; docs/reduce.md lists the columns."
    ),
)

QUERY_UNSAFE = Code(
    2604,
    "A query does more than compute over its window",
    happened=(
        "The SQL of a reduce reads other tables or files, calls Java, runs scripts, or is not one SELECT. A query "
        "runs with the permissions of the whole pipeline, so that is refused."
    ),
    data="The query was not run.",
    do="Remove that part; or, if the query may do everything that the runner may, set `unsafe: true` next to it.",
)

SPARK_SETTINGS = Code(
    2605,
    "Spark does not accept its settings",
    happened=(
        "`spec.spark` of the pipeline has a setting that Spark refuses, or the driver received no settings that it "
        "can read."
    ),
    data=("Spark did not start, so no window was computed. Records of open windows stay in the logs of their lanes."),
    do=("Correct the setting that Spark names in the message. `millstream spark check pipeline.yaml` tries it alone."),
)

SPARK_TOKEN = Code(
    2606,
    "The Spark driver and its vertices have no common secret",
    happened=(
        "A Spark driver that listens on a port answers only clients that have its token, and one of the two has "
        "none or a different one."
    ),
    data=("The driver refused, so nothing was computed. Records of open windows stay in the logs of their lanes."),
    do=(
        "Set the same secret in the environment variable that the message names for the driver and for all "
        "workers, or let the driver listen on a Unix socket."
    ),
)
