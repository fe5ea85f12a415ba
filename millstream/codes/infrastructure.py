"""Codes for the machine and servers: files, disks and processes (40xx), the broker (41xx), Spark and Java (42xx), and
the external systems of sources and sinks (43xx)."""

from __future__ import annotations

from millstream.codes.code import Code

_WAITS = (
    "Nothing of what was refused is stored. The lane keeps it and tries again; its input is not acknowledged before."
)

_NOT_STARTED = "The process did not process any data."

_OPEN_WINDOWS = "No result was made. Records of open windows stay in the logs of their lanes."

DISK_FULL = Code(
    4001,
    "The disk is full",
    happened=(
        "The file system of a log, of a store of what functions remember, of a file sink or of the data directory has "
        "no space left, or a quota is used up."
    ),
    data=("Acknowledged data is not affected. The lane waits, accepts nothing new, and continues when there is space."),
    do="Free some space or enlarge the disk. The run does not have to be restarted.",
)

CANNOT_WRITE = Code(
    4002,
    "A file or directory cannot be written",
    happened=(
        "The system refused to create, write, move or remove something that Millstream needs: missing permission, "
        "a read-only file system, a disk error."
    ),
    data=(
        "The data was not written. If it was output or the log of a lane, the lane stopped and continues from its "
        "mark at the next start."
    ),
    do=(
        "Correct the permissions or the file system as the reason in the message says, or name another directory "
        "(`--data-dir`)."
    ),
)

CANNOT_READ = Code(
    4003,
    "A file cannot be read",
    happened=(
        "The system refused to read a file of a source, of the data directory or of a command: missing permission, "
        "a directory in its place, a disk error."
    ),
    data=(
        "Nothing of it was used. A source lane stops at what it has committed and continues from there at the next "
        "start."
    ),
    do="Correct the permissions, path or disk as the reason in the message says.",
)

FSYNC_FAILED = Code(
    4004,
    "The disk did not confirm what was written (fsync failed)",
    happened=(
        "After a failed fsync it is unknown which bytes are on the disk, and trying again proves nothing. So the "
        "file is given up."
    ),
    data=(
        "What was not durable before is not acknowledged: the lane continues from its mark at the next start and "
        "writes it again."
    ),
    do=(
        "Check the disk and the system's log. Errors of this kind usually mean that the disk or a network "
        "file system fails."
    ),
)

AUDIT_UNWRITABLE = Code(
    4005,
    "The audit file cannot be written",
    happened="Whatever is done to a pipeline is recorded before it is done, and the entry could not be written.",
    data="The command did nothing.",
    do="Free some space or correct the permissions of the file, or name another one in `MILLSTREAM_AUDIT`.",
)

TEMPORARY_DIRECTORY = Code(
    4006,
    "The temporary directory cannot be used",
    happened=(
        "Sockets of functions and of Spark are in a directory below `TMPDIR`. It cannot be created there, or its "
        "name is too long for a Unix socket."
    ),
    data=_NOT_STARTED,
    do="Set `TMPDIR` to a short path of a directory you may write to.",
)

DISK_TOO_SMALL = Code(
    4007,
    "The disk is too small for the buffers",
    happened=(
        "The pipeline reserves space in the broker's store for its buffers, and the disk has less than that free."
    ),
    data="Nothing was started and nothing was stored.",
    do="Lower `limits.bufferMaxBytes`, free some space, or choose a larger disk with `--data-dir`.",
)

DATA_DIRECTORY_IN_USE = Code(
    4010,
    "The data directory is in use",
    happened="Another run, or another command that changes it, uses the data directory.",
    data="Nothing was changed. The other process is not affected.",
    do=(
        "End the other run first: Ctrl-C in its terminal, or `kill` with the number in the message, which "
        "drains it. Or choose another `--data-dir`."
    ),
)

PROCESS_STAYS = Code(
    4011,
    "A process of an earlier run does not end",
    happened=(
        "A run that was killed left a process that does not end even when it is killed; it may be stuck in disk I/O."
    ),
    data="Nothing was started beside it, so nothing is written twice.",
    do="Try again later. If the process remains, fix the disk or file system that it waits for, or restart the "
    "machine.",
)

PROCESS_NOT_STARTED = Code(
    4012,
    "A process cannot be started",
    happened=(
        "The system refused to start a program of the run: it is missing or not executable, or there are too many "
        "processes or open files."
    ),
    data=_NOT_STARTED,
    do="Correct what the message names; reinstall Millstream if its files are missing.",
)

PROCESS_KILLED = Code(
    4013,
    "A process of the run is killed from outside again and again",
    happened=(
        "Something other than the run ends a process with a signal, many times without progress in between. Often "
        "it is the system, because the machine is out of memory."
    ),
    data=(
        "What the process had not committed waits in the buffers or in the source. Committed marks, buffers and "
        "results are unchanged."
    ),
    do=(
        "Look for `Out of memory` in the system's log (`dmesg`). Give the machine or container more memory, "
        "or run fewer processes (`--workers`)."
    ),
)

LOG_SHARED = Code(
    4014,
    "Two lanes write to one directory",
    happened=("A process keeps writing to the directory of a lane's log as if it were the newer owner."),
    data="What this process had not made durable is not acknowledged.",
    do="Give each lane, and each run, its own directory.",
)

FUNCTION_NOT_HELD = Code(
    4015,
    "This machine cannot confine a function as requested",
    happened=(
        "The sandbox or the limits of a function could not be set up: for example, the system has no user "
        "namespaces for you, or a path cannot be mounted."
    ),
    data="The function was not started, so no record was given to it. Its input waits.",
    do=(
        "See the reason in the message, and docs/security.md for what the system needs; or ask for less "
        "(`sandbox`, `limits`)."
    ),
)

PROCESS_TOO_LARGE = Code(
    4016,
    "A process of the run takes too much memory again and again",
    happened=(
        "A worker took more memory than its limit, and was ended and restarted, several times in a row. Usually "
        "something that it reads is small when it is stored, and much larger when a library decompresses or loads it: "
        "a batch of records of a Kafka topic, or the log of a table."
    ),
    data=(
        "What the worker had not committed waits in the buffers or in the source. Committed marks, buffers and "
        "results are unchanged."
    ),
    do=(
        "Find out what the worker reads (`millstream logs`), and remove it from the source if a stranger has put it "
        "there. If it belongs there, raise the limit with `--worker-memory`, or give the machine more memory."
    ),
)

PORT_TAKEN = Code(
    4020,
    "A port or address cannot be listened on",
    happened=(
        "Another process uses it, it belongs to no interface of this machine, it needs more permissions, or no "
        "port is free."
    ),
    data="Nothing was received on it. Lanes that were to listen there did not start.",
    do=(
        "End the program that uses it (`ss -ltnp` shows it), or choose another port or address; 0 takes a free "
        "port where the pipeline allows it."
    ),
)

BROKER_UNREACHABLE = Code(
    4101,
    "The broker cannot be reached",
    happened=(
        "No connection could be made in the time allowed: the server is not running, the address is wrong, or "
        "something in between refuses."
    ),
    data="Nothing was read or written. What the broker stores is not affected.",
    do=(
        "Check that the server is running, and that address and port are right. Processes of a run wait for a "
        "broker that becomes unavailable; this one never had a connection."
    ),
)

BROKER_REFUSES = Code(
    4102,
    "The broker refuses the connection",
    happened=(
        "The server does not accept the credentials, does not offer the required encryption, has a certificate "
        "that is not trusted, or closed the connection for another reason."
    ),
    data="Nothing was read or written over this connection.",
    do=(
        "Correct the user, password or certificates in the access file (`--broker-access`, deploy/README.md), or "
        "the server's configuration."
    ),
)

BROKER_RIGHTS = Code(
    4103,
    "The broker does not permit what a process needs",
    happened="The user that a process connects as lacks a permission on the broker.",
    data="What was refused had no effect.",
    do=(
        "Grant the permission that the message names. `millstream broker config` writes users with the permissions "
        "they need."
    ),
)

DURABILITY_UNKNOWN = Code(
    4104,
    "Whether the broker keeps what it acknowledges is not known",
    happened=(
        "The broker does not show its settings to this user, so it cannot be verified that commits survive what "
        "`--durability` asks for."
    ),
    data="Nothing was committed: the pipeline did not start on a promise that cannot be verified.",
    do=(
        "Let the broker show its settings, as the message says; or, if you know that they are right, start with "
        "`--durability unverified`."
    ),
)

NOT_DURABLE = Code(
    4105,
    "The broker would not keep what it acknowledges",
    happened=("The broker acknowledges writes before they are on the disk, and the pipeline asks for more than that."),
    data=("Nothing was committed. With these settings a power cut could lose records that sources consider safe."),
    do=(
        "Set `sync_interval: always` (NATS) or `appendfsync always` (Redis, Valkey), or choose a weaker durability "
        "explicitly."
    ),
)

BROKER_VERSION = Code(
    4106,
    "The broker is too old",
    happened=(
        "Older versions of the server lack something that commits rely on, or have a defect that would damage them."
    ),
    data="Nothing was read or written. The server's data can be kept when the server is replaced.",
    do="Replace the server with the version that the message names, or a later one.",
)

BROKER_ROLE = Code(
    4107,
    "The server is not suitable for a ledger",
    happened="It is a replica, or a member of a Redis cluster.",
    data="Nothing was read or written.",
    do=(
        "Name the server that takes writes; ledgers in Redis need their own server, without cluster "
        "(docs/guarantees.md)."
    ),
)

BROKER_STORAGE_FULL = Code(
    4108,
    "The broker's storage is full",
    happened=(
        "The server refused a commit because its disk, its memory limit or the space reserved for a ledger is used up."
    ),
    data=_WAITS,
    do="Give the broker more space. A NATS server that logged write errors has to be restarted afterwards.",
)

BUFFER_FULL = Code(
    4109,
    "A buffer is full",
    happened=(
        "The reader of a buffer is slower than its writers, or has stopped, and the buffer has reached its limit."
    ),
    data=_WAITS,
    do=(
        "Nothing, if it passes by itself. Otherwise use `millstream status` to find the vertex whose input waits: "
        "it is too slow, or has stopped."
    ),
)

BROKER_COMMAND = Code(
    4110,
    "The broker refuses a request",
    happened="The server answered with an error that Millstream does not classify further. The message has its text.",
    data="What was refused had no effect.",
    do=(
        "Check the server's log. Ledgers need a NATS server with JetStream, or Redis or Valkey with the settings "
        "that docs/guarantees.md names."
    ),
)

LEDGER_REMOVED = Code(
    4111,
    "A ledger is missing from the broker",
    happened="The stream or the keys of a vertex disappeared while the pipeline used them.",
    data=(
        "The records that waited in its buffers and the marks of its lanes are missing from the broker; nothing "
        "more was read or written."
    ),
    do="Restore the broker's store, or start the pipeline over with `--fresh`. Find out who removed it.",
)

LEDGER_NAME_TAKEN = Code(
    4112,
    "The name of a ledger belongs to another vertex",
    happened="Two pipelines or vertices on one broker would use the same name for a stream or a bucket.",
    data="Nothing was written into what belongs to the other.",
    do=(
        "Rename one of the two vertices or pipelines, or give each pipeline its own account (`millstream broker "
        "config`)."
    ),
)

LEDGER_LAYOUT = Code(
    4113,
    "A ledger has the layout of another version",
    happened="The ledger was created by a version of Millstream that uses another layout.",
    data="Nothing was read or written. The ledger is as the other version left it.",
    do="Continue with that version, or start the pipeline over.",
)

BROKER_RESERVATION = Code(
    4114,
    "The broker cannot reserve the space for a ledger",
    happened=(
        "The limits of the broker or of the account, or its disk, are smaller than what the buffers of the vertex "
        "may need."
    ),
    data="The ledger was not created. Nothing was stored.",
    do="Lower `limits.bufferMaxBytes` of the pipeline, or give the broker or the account more storage.",
)

BROKER_PROGRAM = Code(
    4115,
    "The broker's program is not available",
    happened=(
        "The server that a local run starts is not installed, or the environment variable for it names no program."
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
        "The server ended at once, did not answer in time, or does not start again after it ended. The message has "
        "its last lines."
    ),
    data=(
        "Nothing was read or written since then. Its store is unchanged, unless its log says that files are damaged."
    ),
    do=(
        "See the lines in the message and `millstream logs broker`: common causes are a full disk, missing "
        "permissions for the directory and damaged files."
    ),
)

BROKER_AWAY = Code(
    4117,
    "The broker does not answer at the moment",
    happened=(
        "A request got no answer, or one that may change in a moment: the server is restarting, its leader is "
        "changing, the connection broke."
    ),
    data=(
        "It may be unknown whether the request had an effect; repeating it, or looking, settles that without harm. "
        "Nothing is acknowledged before it is known."
    ),
    do="Nothing, if it passes. If it stays, check that the server is running and what its log says.",
)

BUFFERS_TAKE_NOTHING = Code(
    4118,
    "The buffers of a replay, or the ledger of a state, accept nothing more",
    happened=(
        "The buffers that records are replayed to are full, or the ledger of a state that is being changed; or the "
        "broker does not answer."
    ),
    data="The message says how much was done. It is known, and skipped when the command is repeated.",
    do="Run the pipeline, which makes room, end it, and repeat the command.",
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
    "No usable Java was found, or it is too old",
    happened=(
        "Spark needs Java. None was found, `JAVA_HOME` does not name one, or the one that was found does not run "
        "or is older than Spark, or the cache it starts from, needs."
    ),
    data=_OPEN_WINDOWS,
    do="`pip install 'millstream[reduce]'` installs one; or correct or unset `JAVA_HOME`.",
)

SPARK_NOT_STARTED = Code(
    4204,
    "Spark does not start",
    happened=(
        "Its JVM ended before a session was available, provided none in time, cannot be run, or Spark could not "
        "listen on its address. The message has its output."
    ),
    data=_OPEN_WINDOWS,
    do=(
        "See what Spark reported: common causes are too little memory, and settings that do not fit the machine. "
        "`millstream spark check` tries it alone; `millstream logs spark` has more."
    ),
)

SPARK_LOST = Code(
    4205,
    "Spark is gone",
    happened="The JVM or the session that computed windows ended, was killed, or no longer answers.",
    data=("Jobs that were running have no result, and are requested again with the same rows. " + _OPEN_WINDOWS),
    do=(
        "In a run, the driver is restarted automatically. If it happens again, look for `Out of memory` in the "
        "system's log, and give Spark more memory (`spec.spark`)."
    ),
)

SPARK_UNREACHABLE = Code(
    4206,
    "The Spark cluster cannot be reached",
    happened="The master or the Spark Connect server in `spec.spark` accepts no connection.",
    data=_OPEN_WINDOWS,
    do="Start it, or correct `spec.spark`. `millstream spark check pipeline.yaml` tries it alone.",
)

SPARK_RUNS_NO_JOB = Code(
    4207,
    "Spark cannot run the simplest job",
    happened=(
        "Spark is running, but a job that uses nothing of yours failed: its workers find no Python, or lack packages."
    ),
    data=("No window was given up because of it. " + _OPEN_WINDOWS),
    do=(
        "On a cluster, check that every machine has the same Python and packages; `spark.pyspark.python` names the "
        "Python."
    ),
)

SPARK_JOB = Code(
    4208,
    "A Spark job failed",
    happened="A job failed for a reason that Spark does not blame on your function or on the data of a window. The "
    "message has the reason.",
    data="The windows have no result yet: the job is run again with the same rows. A window that fails several times "
    "when it is computed alone, while Spark computes others, has failed: `retryStrategy` decides.",
    do="Nothing, if it passes. If it happens again, see `millstream logs spark`.",
)

SPARK_WORKER_LOST = Code(
    4209,
    "A process that computed windows died",
    happened=(
        "A Python worker or an executor of Spark ended in the middle of a task: the function or a library crashed, "
        "or the system killed it because memory ran out."
    ),
    data=("The windows have no result yet. They are computed again, alone, to find out whether one of them causes it."),
    do="Nothing, if it passes. A window that kills its worker each time is reported as failed (MS-3002).",
)

SPARK_CACHE = Code(
    4210,
    "The cache for starting Spark cannot be created",
    happened="Java ended without writing it, or the directory for it cannot be written.",
    data="It contains nothing of a pipeline. Spark starts without it, in twice the time.",
    do="Set `MILLSTREAM_CACHE` to a directory you may write to, or see the output of Java.",
)

FUNCTION_UNREACHABLE = Code(
    4211,
    "A reduce function cannot be reached from Spark",
    happened=(
        "The process that serves a reduce function ended, or cannot be reached from the machines that run tasks."
    ),
    data="The windows have no result yet: the task is run again with the same rows.",
    do="Check that the function is running, and that every machine of the cluster can reach its address.",
)

OUTPUT_CLOSED = Code(
    4301,
    "Standard output cannot be written",
    happened=(
        "A log sink, or a command with its result, could not write to standard output: its disk is full, or its device "
        "refuses. A command whose reader has ended says nothing, and has exit code 141."
    ),
    data=(
        "Records that were printed before are not affected. The others wait in the buffer before the sink, and "
        "those since its last mark are printed again at the next start. The result of a command is incomplete."
    ),
    do="Start again with an output that can be written.",
)

TARGET_AWAY = Code(
    4302,
    "The server of a source or sink does not answer",
    happened="A connector could not reach its server, or was asked to wait.",
    data="Nothing of what failed is acknowledged: the lane waits and tries again.",
    do=(
        "Nothing, if it passes. If it stays, check that the server is running, and that address and permissions "
        "are right."
    ),
)

OUTPUTS_NOT_MOVED = Code(
    4303,
    "Files of an earlier run cannot be moved",
    happened="`--move-outputs` could not rename the directory of a file sink, or a part of it.",
    data="No file was removed. Some may already be in the new place.",
    do="Move the remaining files yourself, together with the `.millstream` directory next to them, then run again.",
)

SINK_FILE_DAMAGED = Code(
    4304,
    "A file of a file sink cannot be finished",
    happened=("What had been written of a file has changed: something else changed it, or the disk failed."),
    data=("The file is not given its final name. Its records are behind the mark of the lane and are written again."),
    do="Find out what writes to the directory of the sink, and check the disk.",
)

EXPERIMENT_STOPPED = Code(
    4305,
    "An experiment or a measurement did not finish",
    happened="It was stopped, or a part of it did not answer in time on this machine.",
    data="It says nothing about your pipelines: experiments and measurements have their own data.",
    do="Try again on a machine with less load, or with fewer records.",
)

EDIT_WAITS = Code(
    4119,
    "A change of a state waits for its lane",
    happened=(
        "What a function remembers was to be changed while the pipeline runs, and the lane has not done so in time: "
        "its function takes long, its worker restarts, the broker does not answer or is full, or the run was started "
        "by a version of Millstream whose lanes make no such changes. Or two commands wrote to the lane at once."
    ),
    data="What was handed over is stored; the lane makes it once, as soon as it can. The message says if nothing was.",
    do=(
        "See `millstream status` for what the lane waits for, and `millstream state get` for what is remembered. The "
        "command can be repeated: what is already so is not changed again."
    ),
)
