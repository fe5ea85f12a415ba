"""Codes of what the user has to change: commands and options (21xx), a pipeline that does not fit its stored data
(23xx), access to the broker (24xx), sources, sinks and records (25xx), functions, queries and Spark (26xx)."""

from __future__ import annotations

from millstream.codes.code import Code

_NOTHING_DONE = "Nothing was changed: the command ended before it did anything."

OPTION_VALUE = Code(
    2101,
    "An option has a value that it cannot have",
    happened=(
        "The value of an option, or of an environment variable that stands for one, is out of range or not "
        "in the form that is needed."
    ),
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
        "The command looks into a run, and the directory it looks in holds none: runs are found below the "
        "directory they were started from, in `.millstream/<pipeline>`. Or it holds several, and none was named. "
        "Over a broker elsewhere, nothing of that pipeline is stored there."
    ),
    data=(
        "Nothing was changed, and nothing is said about data elsewhere: the command looked in a place that has none."
    ),
    do=(
        "Go to the directory from which `millstream run` was started, or name the run with the pipeline's file, "
        "`--pipeline NAME` or `--data-dir DIR`; "
        "for another broker see that URL, account and pipeline are the right ones."
    ),
)

NO_NUMBERS_YET = Code(
    2105,
    "The run has no numbers yet",
    happened=("The run has just been started and has not written how far it is, or it ended before it came that far."),
    data="Nothing was changed.",
    do="Try again in a second. If it stays so, look at `millstream logs runner`.",
)

PIPELINE_RUNS = Code(
    2106,
    "The pipeline is running",
    happened="The command changes what is stored, which is only possible while the pipeline does not run.",
    data=_NOTHING_DONE,
    do="End the run with Ctrl-C, which drains it, then give the command again, then run the pipeline again.",
)

NOT_IN_PIPELINE = Code(
    2107,
    "The pipeline has nothing of that name",
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
        "A command was given an edge with `chain: true`, or a vertex behind one. Its records are handed on in memory, "
        "so there is nothing to look at or to put records into."
    ),
    data=_NOTHING_DONE,
    do=(
        "Use an edge into the chain or out of it: the message names them. Or give the edge a buffer: remove `chain`, "
        "which a pipeline takes where nothing waits."
    ),
)

NO_DEAD_LETTERS = Code(
    2108,
    "There are no dead letters to read there",
    happened=(
        "The file or directory that was named is not there, or no file sink of the pipeline stores dead letters."
    ),
    data=_NOTHING_DONE,
    do="Name the files that hold them. With `--stored` the command reads those that still wait in buffers.",
)

DEAD_LETTER_UNREADABLE = Code(
    2109,
    "A line is not a dead letter that can be read",
    happened=(
        "A line of the file is not an envelope as file sinks write it, or lacks what is needed to put the record back."
    ),
    data="Nothing of this file was put back. The file is as it was.",
    do="Correct or remove the line that the message names. docs/sinks.md describes envelopes.",
)

PATH_EXISTS = Code(
    2110,
    "Something is there already",
    happened="The command makes new files, and never writes over what is there.",
    data="Nothing was written.",
    do="Choose another directory, or move away what is in the way.",
)

RESOLVED_PIPELINE = Code(
    2111,
    "The resolved pipeline cannot be used",
    happened=(
        "A worker takes the JSON that `millstream compile` or `millstream run` writes, and the file it got "
        "is something else, cannot be read, or comes from another version."
    ),
    data="The worker did not start. Nothing was changed.",
    do=(
        "Make the file again with `millstream compile pipeline.yaml`, with the version of Millstream that "
        "runs the workers."
    ),
)

EXTRA_NEEDED = Code(
    2112,
    "A package is not installed here",
    happened="What was asked for works with a package that only an extra of Millstream installs.",
    data=("The process ended before it did anything with data, and goes on from there when the package is installed."),
    do="Run the `pip install` that the message names, or use an image that has the package.",
)

EXTENSION = Code(
    2113,
    "An extension cannot be used",
    happened=(
        "A connector, ledger technology or another extension is not there, cannot be imported, is offered by "
        "two packages, or is not an object of the kind that belongs there."
    ),
    data="The process did not open it, so nothing was read or written through it.",
    do=(
        "Install or correct the package that the message names; where two offer the same name, remove one. "
        "docs/extending.md says what an extension has to be."
    ),
)

PORTS_TAKEN = Code(
    2114,
    "Ports that the run needs are taken",
    happened=(
        "Ports of `--metrics-port-base` or of http sources are used by other processes. They are tried "
        "before anything is started."
    ),
    data=_NOTHING_DONE,
    do="End what uses them (`ss -ltnp` shows it), or choose other ports.",
)

OUTPUTS_OF_EARLIER_RUN = Code(
    2115,
    "A file sink's directory has files of another run",
    happened=(
        "A pipeline that starts over would write into a directory that holds the results of a run before, or "
        "of another pipeline. A file sink does not mix them: after a crash it could not tell which are its "
        "own."
    ),
    data="Nothing was removed and nothing was written. The files that are there stay as they are.",
    do=(
        "Run again with `--move-outputs`, which moves them aside, or move them away yourself together with "
        "the `.millstream` directory beside them; or set another path."
    ),
)

OUTPUT_IN_USE = Code(
    2116,
    "Another run writes into the same directory",
    happened="A file sink needs its directory for itself, and a run that is alive uses it.",
    data="This run wrote nothing there. What the other run writes is not touched.",
    do="End the other run, or give one of the two another path.",
)

TELEMETRY_SETTINGS = Code(
    2117,
    "Telemetry is set up in a way that is not supported",
    happened=(
        "An environment variable of OpenTelemetry asks for an export that Millstream does not have; it "
        "exports over gRPC."
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
        "A certificate, a key or the certificates of an authority cannot be read, do not fit together, are "
        "not PEM files, or could not be made."
    ),
    data="No connection was opened with them, so no record went over it.",
    do=(
        "Correct the files that the message names. Certificates for tests are made by the program `openssl`, "
        "which has to be installed."
    ),
)

EXPERIMENT_DISK = Code(
    2119,
    "The disk of the experiment may not be filled",
    happened=(
        "`millstream chaos --faults disk` fills the file system that the experiment lies on, and this one is "
        "large or used by others."
    ),
    data=_NOTHING_DONE,
    do="Name a directory on a small file system of its own, as the message shows.",
)

NO_SUCH_CODE = Code(
    2120,
    "There is no such error code",
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
    happened=(
        "There is no command or option of that name, an argument is missing, or a value is none of those that an "
        "option takes."
    ),
    data=_NOTHING_DONE,
    do=(
        "Take what the message proposes. `millstream --help` lists the commands and `millstream COMMAND --help` the "
        "options of one, with examples; `millstream completion SHELL` has a shell complete them."
    ),
)

NO_SUCH_CONNECTOR = Code(
    2122,
    "There is no such source or sink",
    happened="The name is not one of a kind of source or sink that Millstream or an installed package has.",
    data=_NOTHING_DONE,
    do="`millstream connectors` lists them. One of another package is found when that package is installed here.",
)

NO_SUCH_TESTS = Code(
    2130,
    "There are no tests there",
    happened="`millstream test` was given a place that is not there, or that has neither tests nor cases.",
    data=_NOTHING_DONE,
    do="Name a directory with tests, a pipeline file, or a case file. docs/testing.md describes them.",
)

TEST_CASE = Code(
    2131,
    "A test case cannot be used",
    happened=(
        "A case file of `millstream test` is not what one has to be, or does not fit its pipeline: it names a vertex "
        "that is not there, or gives a source what that source never gives."
    ),
    data="The case was not run. No data of the pipeline's own is touched by a test.",
    do="Correct the file as the message says. docs/testing.md describes case files.",
)

CHANGED_WHERE_DATA_WAITS = Code(
    2301,
    "The pipeline was changed where something waits",
    happened=(
        "A vertex, edge, partition or window that was changed or removed still holds records that were taken "
        "in and are not processed. The run refuses to start, because they would belong to nothing."
    ),
    data="Nothing was changed. What waits is kept, and is processed when the pipeline runs as it was.",
    do=(
        "Run the pipeline as it was until that is done (Ctrl-C drains it), then change it. Or start over "
        "with `--fresh`, which gives up what is stored, or use another `--data-dir`."
    ),
)

DATA_OF_ANOTHER_PIPELINE = Code(
    2302,
    "The data directory belongs to a different pipeline",
    happened="Names, kinds or settings that the stored data depends on are not those of this pipeline file.",
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
        "The kind of the source or the number of its partitions was changed, so the stored position says "
        "nothing about where the new one has to go on."
    ),
    data="Nothing was read. The stored position is kept.",
    do="Give the source its former kind and partitions, or start over with `--fresh`.",
)

OTHER_VERSION = Code(
    2304,
    "Stored data has the format of another version",
    happened="A position or a log was written by a version of Millstream whose format this one does not read.",
    data="Nothing was changed. What is stored is as the other version left it.",
    do=(
        "Run the version that wrote it; drain the pipeline there before you change versions. Or start over "
        "with `--fresh`."
    ),
)

LOG_OF_ANOTHER = Code(
    2305,
    "The directory holds the log of something else",
    happened=(
        "The windows of a reduce lane are logged in a directory of its own, and this one has the log of "
        "another lane or of another run, or a file is in the way."
    ),
    data="Nothing was written, and the log that lies there is as it was.",
    do=(
        "Give each lane its own directory; bring the ledger back that the log belongs to, or remove the "
        "directory to start the lane over, which gives up the windows in it."
    ),
)

WINDOWS_CHANGED = Code(
    2306,
    "The windows of a reduce were changed while some are open",
    happened="Open windows of other settings than the pipeline now has lie in the log of the lane.",
    data="Nothing was changed. The records of the open windows are kept.",
    do=(
        "Give the reduce its former windows and let the pipeline drain, then change them; or use a new data directory."
    ),
)

NOT_SET_BACK = Code(
    2307,
    "The watermark cannot be set back",
    happened="A reduce keeps its input (`keepInput`), or the input of a lane has ended and with it event time.",
    data=_NOTHING_DONE,
    do=(
        "Start the pipeline over with `--fresh`, or leave the watermark as it is. docs/cli.md says when it "
        "can be set back."
    ),
)

NOT_REPLAYED = Code(
    2308,
    "The records cannot be put back there",
    happened="The vertex has ended and its windows are closed, or it has never stored anything.",
    data="Nothing was changed, and the dead letters are as they were.",
    do="Run the pipeline once before a replay; where it has ended, give the records to a new run as input.",
)

BROKER_ACCESS_FILE = Code(
    2401,
    "The broker's access file cannot be used",
    happened=(
        "The file that says who connects to the broker cannot be read, is not a YAML mapping, or has fields "
        "that do not fit."
    ),
    data="No connection was made. No data was touched.",
    do="Correct the file as the message says. deploy/README.md describes it.",
)

BROKER_ADDRESS = Code(
    2402,
    "The broker's address cannot be used",
    happened=(
        "The URL of the broker is not in the form that its technology needs, or has a user or password in "
        "it, which every user of the machine could read off the command line."
    ),
    data="No connection was made. No data was touched.",
    do="Write the URL as the message shows, and put credentials into a file that `--broker-access` names.",
)

BROKER_MESSAGE_SIZE = Code(
    2403,
    "The broker takes smaller messages than Millstream sends",
    happened="`max_payload` of the NATS server is smaller than the largest frame that a commit may hold.",
    data="The process refused to start, so no commit was tried.",
    do="Set `max_payload` of the server to the value in the message, and restart the server.",
)

BROKER_NAME = Code(
    2404,
    "A name cannot be used in the broker",
    happened=(
        "A pipeline or vertex has a name that cannot be part of a subject or an account of the broker, or "
        "two pipelines want the same account."
    ),
    data="Nothing was made in the broker.",
    do="Rename it: letters, digits, `-` and `_`, and one name for each pipeline.",
)

RECORD_TOO_LARGE = Code(
    2501,
    "A record is larger than the broker takes",
    happened="A source or a function gave a record that does not fit into one message of the broker.",
    data=(
        "The commit that held it was not made: its input is not acknowledged and is processed again at the "
        "next start, and stops there again until the record is smaller."
    ),
    do=("Make the record smaller: store large contents elsewhere and send their name. docs/spec.md gives the limits."),
)

COMMIT_TOO_LARGE = Code(
    2502,
    "One commit would have too many frames",
    happened=(
        "What has to be committed together, the outputs for one record over all edges and partitions, is "
        "more than one atomic batch of the broker can hold."
    ),
    data="The commit was not made: its input is not acknowledged and is processed again at the next start.",
    do="Let the function give fewer outputs for one input, or send them to fewer edges and partitions.",
)

EVENT_TIME_AHEAD = Code(
    2503,
    "A record's event time is too far in the future",
    happened=(
        "A record is further ahead of the clock than `watermark.maxFuture` allows. It would drive the "
        "watermark on, and all records behind it would be late."
    ),
    data=(
        "The record was not taken in and the watermark did not follow it. The input is read again at the "
        "next start, and stops there again."
    ),
    do=(
        "Correct the record or the clock of who writes it; raise `watermark.maxFuture`; or set "
        "`watermark.onFuture` to have such records dropped or sent to a dead-letter edge. docs/sources.md "
        "has the details."
    ),
)

RECORD_INVALID = Code(
    2504,
    "A source met a record that it cannot use",
    happened=(
        "A line, row or request is not what the source expects: not JSON, a column short, an "
        "event time that cannot be parsed. The message names the place."
    ),
    data=(
        "The record was not taken in, nor anything behind it. What was read before it is committed or is read again."
    ),
    do="Put the input right and start again, or set `onInvalid` of the source to `drop` or `deadLetter`.",
)

SOURCE_FILES_MISSING = Code(
    2505,
    "A file source has no files",
    happened="A path of the source leads to no file, or a pattern matches none.",
    data="Nothing was read.",
    do=(
        "Correct `paths`, which start from the directory of the pipeline file, or set `follow: true` to wait "
        "for files to come."
    ),
)

SOURCE_COLUMNS = Code(
    2506,
    "The columns of a file are not those of the pipeline",
    happened="The header of a CSV file lacks a column that the pipeline names, or is not a header that can be used.",
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
    do="Use narrower `paths` or more `partitions`, and move away files that are done.",
)

HTTP_SOURCE_OPEN = Code(
    2508,
    "An http source would be open to every machine",
    happened="The source listens on an address that other machines reach, and asks senders for no credentials.",
    data="The source was not opened, so nothing was taken in.",
    do="Set `http.auth` or `http.tls.clientCa`; or `http.allowUnauthenticated: true` if that is meant.",
)

HTTP_SINK_SETTINGS = Code(
    2509,
    "An http sink has a URL or a header that cannot be sent",
    happened=(
        "A value that the pipeline takes from an environment variable or a file is not a URL, or no value of a header."
    ),
    data="The sink was not opened. Nothing was sent.",
    do=("Correct the variable or file that the message names; a line break at the end of a file is a common cause."),
)

SINK_PATH = Code(
    2510,
    "A file sink may not use its directory",
    happened=(
        "The directory cannot be made, read or written by the user that runs the pipeline, or something else "
        "has its name."
    ),
    data=(
        "Nothing was written by the step that failed. Records wait in the buffer before the sink, and are "
        "written from its mark on when the directory can be used."
    ),
    do="Choose another path or change its rights, then start again.",
)

SECRET_MISSING = Code(
    2511,
    "A value that stands elsewhere is not there",
    happened=(
        "The pipeline refers to an environment variable or a file for a value, such as a token, and it is "
        "not set, cannot be read, is empty or too large. A Kubernetes Secret can be read on Kubernetes only."
    ),
    data="What needs the value was not opened, so nothing was read or written with it.",
    do=(
        "Set the variable, or create the file, for the process that runs the vertex. The value itself is never printed."
    ),
)

CONNECTOR_SETTINGS = Code(
    2512,
    "A connector cannot work as it is set up",
    happened=(
        "A source or sink refuses its settings or the state it finds, for a reason that only a change by you can fix."
    ),
    data=(
        "The lane stopped at what it has committed. It goes on from there at the next start; what the target "
        "of a sink has received since its last mark may be delivered again."
    ),
    do="Change what the message names, then start again.",
)

TARGET_REFUSES = Code(
    2514,
    "What a source or sink talks to refuses the connection",
    happened=(
        "The other side answered and let no user in: a user, a password or a certificate that it does not accept, a "
        "database that does not exist, or a right that the user does not have."
    ),
    data=(
        "The lane stopped at what it has committed, or, at `validate --online`, nothing was started. Nothing of what "
        "failed is acknowledged."
    ),
    do=(
        "Correct what the message names: the user, where its password stands, or its rights on the other side. "
        "`millstream validate --online` tries it without running anything."
    ),
)

TARGET_UNFIT = Code(
    2515,
    "What a source or sink names on the other side is missing, or does not fit",
    happened=(
        "The other side can be reached, and a table, a column, a topic or a queue that the settings name does not "
        "exist there, or is of another type or shape than is needed."
    ),
    data=(
        "The lane stopped at what it has committed, or, at `validate --online`, nothing was started. Nothing of what "
        "failed is acknowledged."
    ),
    do="Create or change it on the other side, or correct the settings, as the message says; then start again.",
)

TARGET_OF_ANOTHER_RUN = Code(
    2516,
    "The target of a sink has records of another run",
    happened=(
        "The position that a sink keeps in its target was written by a pipeline of the same name with another data "
        "directory, or before `--fresh`. The two count records differently."
    ),
    data="Nothing was written by this run. What the other run wrote is unchanged.",
    do=(
        "Give this run a target of its own, put back the data directory of the other run, or remove the position as "
        "the message says: then this run's records follow those of the other, from its first record on."
    ),
)

SINK_REFUSED = Code(
    2513,
    "A sink did not take a record",
    happened=(
        "The target refused a record permanently, or the attempts of the retry policy are used up, and the "
        "policy says stop. The message names the record."
    ),
    data=(
        "The record was not acknowledged. It waits in the buffer before the sink, as does all behind it, and "
        "is delivered at the next start; records around it that the target took since the last mark may be "
        "sent again."
    ),
    do=(
        "Put the target or the record right and start again; or give the sink a `fallback`, or set "
        "`retryStrategy.onFailure`."
    ),
)

FUNCTION_IN_CONTAINER = Code(
    2601,
    "A function is a container image, and this process starts none",
    happened=(
        "Workers start functions as processes. A vertex with `container` needs a function that is running already."
    ),
    data="The vertex did not start. Its input waits.",
    do="Start the container beside the worker and name its `address`, or use `command` or `python`.",
)

FUNCTION_IMPORT_RAISES = Code(
    2607,
    "The module of a function cannot be imported",
    happened=(
        "`millstream validate --import` has started the function as a run would, and its module raised an error, "
        "or the process ended or waited before the function was there. A package that is missing in the "
        "function's own environment is the common cause."
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
        "The function takes too many or too few arguments, is not async where it has to be, is annotated with a "
        "type that no value can be or that cannot be sent on, needs a package that is not installed "
        "(`arrow=True`), or is of another kind than its vertex: a map where a sink is needed, say."
    ),
    data="Nothing was run, and no data was touched.",
    do="Change the function as the message says. docs/udf.md has every form that a function may have.",
)

QUERY = Code(
    2603,
    "A query cannot run",
    happened=(
        "Spark refuses the SQL of a reduce: a syntax error, an unknown column or function, columns of "
        "results that do not fit; or the fields of `value` cannot be decoded as it says."
    ),
    data=(
        "No window was computed with it. At a check nothing was started; in a run the windows stay in the "
        "log of their lane."
    ),
    do=(
        "Correct the query or `value` at the place the message names. `millstream validate` checks it "
        "without a run; docs/reduce.md has the columns there are."
    ),
)

QUERY_UNSAFE = Code(
    2604,
    "A query does more than compute over its window",
    happened=(
        "The SQL of a reduce reads other tables or files, calls Java, runs scripts, or is not one SELECT. A "
        "query runs with the rights of the whole pipeline, so that is refused."
    ),
    data="The query was not run.",
    do="Write it without; where it may do all that the runner may, set `unsafe: true` beside it.",
)

SPARK_SETTINGS = Code(
    2605,
    "Spark does not take its settings",
    happened=(
        "`spec.spark` of the pipeline has a setting that Spark refuses, or the driver got no settings it can read."
    ),
    data=("Spark did not start, so no window was computed. Records of open windows stay in the logs of their lanes."),
    do=("Correct the setting that Spark names in the message. `millstream spark check pipeline.yaml` tries it alone."),
)

SPARK_TOKEN = Code(
    2606,
    "The Spark driver and its vertices have no common secret",
    happened=(
        "A Spark driver that listens on a port answers only those who have its token, and one of the two has "
        "none or another one."
    ),
    data=("The driver refused, so nothing was computed. Records of open windows stay in the logs of their lanes."),
    do=(
        "Set the same secret in the environment variable that the message names for the driver and for all "
        "workers, or let the driver listen on a Unix socket."
    ),
)
