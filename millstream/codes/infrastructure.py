"""Codes of the machine and of servers: files, disks and processes (40xx), the broker (41xx), Spark and Java (42xx),
what sources and sinks talk to (43xx)."""

from __future__ import annotations

from millstream.codes.code import Code

_WAITS = (
    "Nothing of what was refused is stored. The lane keeps it and tries again; its input is not acknowledged before."
)

_NOT_STARTED = "The process did not come to work on any data."

_OPEN_WINDOWS = "No result was made. Records of open windows stay in the logs of their lanes."

DISK_FULL = Code(
    4001,
    "The disk is full",
    happened=(
        "The file system of a log, of a file sink or of the data directory has no room left, or a quota is used up."
    ),
    data=(
        "Nothing that was acknowledged is concerned. The lane waits, takes nothing more in, and goes on when "
        "there is room."
    ),
    do="Free some space or enlarge the disk. The run need not be restarted.",
)

CANNOT_WRITE = Code(
    4002,
    "A file or directory cannot be written",
    happened=(
        "The system refused to make, write, move or remove something that Millstream needs: no permission, a "
        "read-only file system, an error of the disk."
    ),
    data=(
        "What was to be written is not there. Where it was output or a log of a lane, the lane stopped and "
        "goes on from its mark at the next start."
    ),
    do=("Correct rights or file system as the reason in the message says, or name another directory (`--data-dir`)."),
)

CANNOT_READ = Code(
    4003,
    "A file cannot be read",
    happened=(
        "The system refused to read a file of a source, of the data directory or of a command: no "
        "permission, a directory in its place, an error of the disk."
    ),
    data=(
        "Nothing of it was used. A source lane stops at what it has committed and reads on from there at the "
        "next start."
    ),
    do="Correct rights, path or disk as the reason in the message says.",
)

FSYNC_FAILED = Code(
    4004,
    "The disk did not confirm what was written (fsync failed)",
    happened=(
        "After a failed fsync it is unknown which of the bytes are on the disk, and trying again proves "
        "nothing. So the file is given up."
    ),
    data=(
        "What was not durable before is not acknowledged: the lane goes on from its mark at the next start "
        "and writes it again."
    ),
    do=(
        "Check the disk and the system's log. Errors of this kind usually mean that the disk or a network "
        "file system fails."
    ),
)

AUDIT_UNWRITABLE = Code(
    4005,
    "The audit file cannot be written",
    happened="What is done to a pipeline is written down before it is done, and the entry could not be written.",
    data="The command did nothing.",
    do="Free some space or correct the rights of the file, or name another one in `MILLSTREAM_AUDIT`.",
)

TEMPORARY_DIRECTORY = Code(
    4006,
    "The temporary directory cannot be used",
    happened=(
        "Sockets of functions and of Spark lie in a directory below `TMPDIR`. It cannot be made there, or "
        "its name is too long for a Unix socket."
    ),
    data=_NOT_STARTED,
    do="Set `TMPDIR` to a short path of a directory you may write to.",
)

DISK_TOO_SMALL = Code(
    4007,
    "The disk is too small for the buffers",
    happened=(
        "The pipeline reserves room in the broker's store for its buffers, and the disk has less than that free."
    ),
    data="Nothing was started and nothing was stored.",
    do="Lower `limits.bufferMaxBytes`, free some space, or choose a larger disk with `--data-dir`.",
)

DATA_DIRECTORY_IN_USE = Code(
    4010,
    "The data directory is in use",
    happened="Another run, or another command that changes it, holds the data directory.",
    data="Nothing was changed. The other process is not disturbed.",
    do=(
        "End the other run first: Ctrl-C in its terminal, or `kill` with the number in the message, which "
        "drains it. Or choose another `--data-dir`."
    ),
)

PROCESS_STAYS = Code(
    4011,
    "A process of an earlier run does not end",
    happened=(
        "A run that was killed left a process that does not end even when it is killed; it may hang in an "
        "access to a disk."
    ),
    data="Nothing was started beside it, so nothing is written twice.",
    do="Try again later. If it stays, fix the disk or file system it waits for, or restart the machine.",
)

PROCESS_NOT_STARTED = Code(
    4012,
    "A process cannot be started",
    happened=(
        "The system refused to start a program that the run consists of: it is gone, may not be executed, or "
        "there are too many processes."
    ),
    data=_NOT_STARTED,
    do="Correct what the message names; install Millstream again where files of it are gone.",
)

PROCESS_KILLED = Code(
    4013,
    "A process of the run is killed from outside again and again",
    happened=(
        "Something other than the run ends a process with a signal, many times without it getting on in "
        "between. Often it is the system, because the machine has no memory left."
    ),
    data=(
        "What the process had not committed waits in the buffers. Marks, buffers and results that were "
        "committed are as they were."
    ),
    do=(
        "Look for `Out of memory` in the system's log (`dmesg`). Give the machine or container more memory, "
        "or run fewer processes (`--workers`)."
    ),
)

LOG_SHARED = Code(
    4014,
    "Two lanes write into one directory",
    happened=(
        "A process goes on writing into the directory of a lane's log as if it were the newer owner, again and again."
    ),
    data="What this process had not made durable is not acknowledged.",
    do="Give each lane, and each run, a directory of its own.",
)

FUNCTION_NOT_HELD = Code(
    4015,
    "This machine cannot hold a function as it is asked to",
    happened=(
        "The sandbox or the limits of a function could not be set up: the system has no user namespaces for you, say, "
        "or a path to be shown cannot be mounted."
    ),
    data="The function was not started, so no record was given to it. Its input waits.",
    do=(
        "Look at the reason in the message and at docs/security.md for what the system needs; or ask for less "
        "(`sandbox`, `limits`)."
    ),
)

PORT_TAKEN = Code(
    4020,
    "A port or address cannot be listened on",
    happened=(
        "Another process uses it, it belongs to no interface of this machine, it needs more rights, or no port is free."
    ),
    data="Nothing came in over it. Lanes that were to listen there did not start.",
    do=(
        "End what uses it (`ss -ltnp` shows it), or choose another port or address; 0 takes a free port "
        "where the pipeline allows it."
    ),
)

BROKER_UNREACHABLE = Code(
    4101,
    "The broker cannot be reached",
    happened=(
        "No connection came about in the time allowed: the server does not run, the address is wrong, or "
        "something between refuses."
    ),
    data="Nothing was read or written. What the broker holds is not concerned.",
    do=(
        "See that the server runs, and that address and port are right. Processes of a run wait for a broker "
        "that was there before and is away; this one never got a connection."
    ),
)

BROKER_REFUSES = Code(
    4102,
    "The broker refuses the connection",
    happened=(
        "The server does not accept who connects, offers no encryption where it is asked for, has a "
        "certificate that does not count here, or closed the connection for another reason of its own."
    ),
    data="Nothing was read or written over this connection.",
    do=(
        "Correct user, password or certificates in the access file (`--broker-access`, deploy/README.md), or "
        "the server's configuration."
    ),
)

BROKER_RIGHTS = Code(
    4103,
    "The broker does not permit what a process needs",
    happened="The user that a process connects as lacks a right in the broker.",
    data="What was refused had no effect.",
    do=(
        "Grant the right that the message names. `millstream broker config` writes users with the rights "
        "that are needed."
    ),
)

DURABILITY_UNKNOWN = Code(
    4104,
    "Whether the broker keeps what it acknowledges is not known",
    happened=(
        "The broker does not tell its settings to this user, so it cannot be seen that commits survive what "
        "`--durability` asks for."
    ),
    data="Nothing was committed: the pipeline did not start on a promise that cannot be checked.",
    do=(
        "Let the broker tell its settings, as the message says; or, where you know that they are right, "
        "start with `--durability unverified`."
    ),
)

NOT_DURABLE = Code(
    4105,
    "The broker would not keep what it acknowledges",
    happened=("The broker acknowledges writes before they are on the disk, and the pipeline asks for more than that."),
    data=("Nothing was committed. With these settings a power cut could lose records that sources take for safe."),
    do=(
        "Set `sync_interval: always` (NATS) or `appendfsync always` (Redis, Valkey), or ask for a weaker "
        "durability by name."
    ),
)

BROKER_VERSION = Code(
    4106,
    "The broker is too old",
    happened=(
        "Older versions of the server lack something that commits rely on, or have a defect that would damage them."
    ),
    data="Nothing was read or written. The server's data can stay when it is replaced.",
    do="Replace the server by the version that the message names, or a later one.",
)

BROKER_ROLE = Code(
    4107,
    "The server is not one that a ledger can lie on",
    happened="It is a replica, one of a Redis cluster, or is asked for more copies than its technology waits for.",
    data="Nothing was read or written.",
    do=(
        "Name the server that takes writes; ledgers in Redis need a server of their own, without cluster "
        "(docs/guarantees.md)."
    ),
)

BROKER_STORAGE_FULL = Code(
    4108,
    "The broker's storage is full",
    happened=(
        "The server refused a commit because its disk, its memory limit or the room reserved for a ledger is used up."
    ),
    data=_WAITS,
    do="Give the broker more room. A NATS server that logged write errors has to be restarted afterwards.",
)

BUFFER_FULL = Code(
    4109,
    "A buffer is full",
    happened=(
        "The reader of a buffer is slower than its writers, or stands still, and the buffer has reached its limit."
    ),
    data=_WAITS,
    do=(
        "Nothing, where it passes by itself. Otherwise look at `millstream status` for the vertex whose "
        "input waits: it is too slow, or has stopped."
    ),
)

BROKER_COMMAND = Code(
    4110,
    "The broker refuses a request",
    happened="The server answered with an error that Millstream has no better word for. The message has its text.",
    data="What was refused had no effect.",
    do=(
        "Look at the server's log. Ledgers need a NATS server with JetStream, or Redis or Valkey with the "
        "settings that docs/guarantees.md names."
    ),
)

LEDGER_REMOVED = Code(
    4111,
    "A ledger is gone from the broker",
    happened="The stream or the keys of a vertex are not there any more, while the pipeline used them.",
    data=(
        "What waited in its buffers and the marks of its lanes are gone from the broker; nothing more was "
        "read or written."
    ),
    do="Restore the broker's store, or start the pipeline over with `--fresh`. See who removed it.",
)

LEDGER_NAME_TAKEN = Code(
    4112,
    "The name of a ledger belongs to another vertex",
    happened="Two pipelines or vertices on one broker come to the same name for a stream or a bucket.",
    data="Nothing was written into what belongs to the other.",
    do=(
        "Rename one of the two vertices or pipelines, or give each pipeline an account of its own "
        "(`millstream broker config`)."
    ),
)

LEDGER_LAYOUT = Code(
    4113,
    "A ledger is laid out by another version",
    happened="The ledger was made by a version of Millstream that lays it out in another way.",
    data="Nothing was read or written. The ledger is as the other version left it.",
    do="Go on with that version, or start the pipeline over.",
)

BROKER_RESERVATION = Code(
    4114,
    "The broker cannot reserve the room for a ledger",
    happened=(
        "The limits of the broker or of the account are lower than what the buffers of the vertex may need, "
        "or its disk is."
    ),
    data="The ledger was not made. Nothing was stored.",
    do="Lower `limits.bufferMaxBytes` of the pipeline, or give the broker or the account more storage.",
)

BROKER_PROGRAM = Code(
    4115,
    "There is no program of the broker",
    happened=(
        "The server that a local run starts is not installed, or the environment variable that names one "
        "leads to no program."
    ),
    data=_NOT_STARTED,
    do=(
        "Install what the message names, or correct the variable (`MILLSTREAM_NATS_SERVER`, `MILLSTREAM_REDIS_SERVER`)."
    ),
)

BROKER_NOT_STARTED = Code(
    4116,
    "The broker of the run does not start",
    happened=(
        "The server ended at once, did not answer in time, or does not come up again after it ended. The "
        "message has its last lines."
    ),
    data=(
        "Nothing was read or written since then. What its store holds is as it was, unless its log says that "
        "files are damaged."
    ),
    do=(
        "Look at the lines in the message and at `millstream logs broker`: no room on the disk, no rights in "
        "the directory and damaged files are the common causes."
    ),
)

BROKER_AWAY = Code(
    4117,
    "The broker does not answer for now",
    happened=(
        "A request got no answer, or one that may be different in a moment: the server restarts, its leader "
        "changes, the connection broke."
    ),
    data=(
        "Whether the request had an effect may be unknown; it is made so that doing it again, or looking, "
        "settles that. Nothing is acknowledged before that is known."
    ),
    do="Nothing, where it passes. If it stays, see that the server runs and what its log says.",
)

BUFFERS_TAKE_NOTHING = Code(
    4118,
    "The buffers of a replay take nothing more",
    happened="The buffers that records are put back into are full, or the broker does not answer.",
    data="The message says how many records were put back. They are known, and left out by a second replay.",
    do="Run the pipeline, which makes room, end it, and replay again.",
)

SPARK_NOT_INSTALLED = Code(
    4201,
    "Spark is not installed",
    happened="A reduce needs Spark, and its packages are not in this environment.",
    data=_OPEN_WINDOWS,
    do="`pip install 'millstream[reduce]'`.",
)

JAVA_UNUSABLE = Code(
    4202,
    "There is no Java that can be used, or it is too old",
    happened=(
        "Spark needs Java. None is found, `JAVA_HOME` leads to none, or the one that is found does not run or is "
        "older than Spark, or the cache it starts from, needs."
    ),
    data=_OPEN_WINDOWS,
    do="`pip install 'millstream[reduce]'` brings one along; or correct `JAVA_HOME`, or unset it.",
)

SPARK_NOT_STARTED = Code(
    4204,
    "Spark does not start",
    happened=(
        "Its JVM ended before a session was there, gave none in time, cannot be run, or Spark could not "
        "listen on its address. The message has what it said."
    ),
    data=_OPEN_WINDOWS,
    do=(
        "Look at what Spark said: not enough memory and settings that do not fit the machine are common. "
        "`millstream spark check` tries it alone; `millstream logs spark` has more."
    ),
)

SPARK_LOST = Code(
    4205,
    "Spark is gone",
    happened="The JVM or the session that computed windows ended, was killed, or does not answer any more.",
    data=("Jobs that ran have no result, and are asked for again with the same rows. " + _OPEN_WINDOWS),
    do=(
        "In a run the driver is started again by itself. If it comes again, look for `Out of memory` in the "
        "system's log, and give Spark more memory (`spec.spark`)."
    ),
)

SPARK_UNREACHABLE = Code(
    4206,
    "The Spark cluster cannot be reached",
    happened="The master or the Spark Connect server that `spec.spark` names gives no connection.",
    data=_OPEN_WINDOWS,
    do="Start it, or correct `spec.spark`. `millstream spark check pipeline.yaml` tries it alone.",
)

SPARK_RUNS_NO_JOB = Code(
    4207,
    "Spark cannot run the simplest job",
    happened=(
        "Spark is there, and a job that uses nothing of yours failed: its workers find no Python, or lack packages."
    ),
    data=("No window was given up for it. " + _OPEN_WINDOWS),
    do=(
        "On a cluster, see that every machine has the same Python and packages; `spark.pyspark.python` names "
        "the Python."
    ),
)

SPARK_JOB = Code(
    4208,
    "A Spark job failed",
    happened="A job failed for a reason that is neither your function's nor a window's data. The message has it.",
    data="The windows have no result yet: the job is run again with the same rows.",
    do="Nothing, where it passes. If it comes again, look at `millstream logs spark`.",
)

SPARK_WORKER_LOST = Code(
    4209,
    "A process that computed windows has gone",
    happened=(
        "A Python worker or an executor of Spark ended in the middle of a task: a crash of the function or "
        "of a library, or the system ended it for lack of memory."
    ),
    data=("The windows have no result yet. They are computed again, alone, to find out whether one of them causes it."),
    do="Nothing, where it passes. A window that ends its worker each time is reported as failed (MS-3002).",
)

SPARK_CACHE = Code(
    4210,
    "The cache from which Spark starts cannot be made",
    happened="Java ended without writing it, or the directory for it cannot be written.",
    data="It holds nothing of a pipeline's. Spark starts without it, in twice the time.",
    do="Set `MILLSTREAM_CACHE` to a directory you may write to, or look at what Java said.",
)

FUNCTION_UNREACHABLE = Code(
    4211,
    "A reduce function does not answer from where Spark computes",
    happened=(
        "The process that serves a reduce function went away, or cannot be reached from the machines that run tasks."
    ),
    data="The windows have no result yet: the task is run again with the same rows.",
    do="See that the function runs, and that every machine of the cluster reaches its address.",
)

OUTPUT_CLOSED = Code(
    4301,
    "The output of a log sink is closed",
    happened="Standard output of the run leads nowhere any more: the program that read it has ended.",
    data=(
        "Records that were printed before are out. The others wait in the buffer before the sink, and those "
        "since its last mark are printed again at the next start."
    ),
    do="Start again with an output that stays, such as a file.",
)

TARGET_AWAY = Code(
    4302,
    "What a source or sink talks to does not answer",
    happened="A connector could not reach its other side, or was asked to wait.",
    data="Nothing of what failed is acknowledged: the lane waits and tries again.",
    do=("Nothing, where it passes. If it stays, see that the other side runs, and that address and rights are right."),
)

OUTPUTS_NOT_MOVED = Code(
    4303,
    "Files of an earlier run cannot be moved",
    happened="`--move-outputs` could not rename the directory of a file sink, or a part of it.",
    data="No file was removed. Some may lie in the new place already.",
    do="Move what is left yourself, together with the `.millstream` directory beside it, then run again.",
)

SINK_FILE_DAMAGED = Code(
    4304,
    "A file of a file sink cannot be finished",
    happened=(
        "What had been written of a file is not there as it was written: something else changed it, or the disk failed."
    ),
    data=("The file is not given its final name. Its records are behind the mark of the lane and are written again."),
    do="Look for what writes into the directory of the sink, and check the disk.",
)

EXPERIMENT_STOPPED = Code(
    4305,
    "An experiment or a measurement did not come to its end",
    happened="It was stopped, or a part of it did not answer in time on this machine.",
    data="It says nothing about your pipelines: experiments and measurements have data of their own.",
    do="Try again on a machine that is less busy, or with fewer records.",
)
