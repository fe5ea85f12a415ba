"""Codes for stored data that is damaged, or differs from what was stored: 5xxx."""

from __future__ import annotations

from millstream.codes.code import Code

_STOPPED = "The lane stopped before it used anything of it, and what was committed before is as it was. "

_REPAIR = (
    "Keep a copy of the data directory. Restore the damaged data from a copy or a replica if you have one. "
    "Otherwise `millstream repair` lists what is damaged and what it affects, and with `--accept-loss` continues "
    "without it; or start the pipeline over with `--fresh`."
)

_LOG = (
    "Keep a copy of the directory, and inspect it with `millstream wal --verify`. Put the right files back if you "
    "have them. Otherwise `millstream repair` reports what is lost: if the lane keeps its input (`keepInput`), the "
    "log can be rebuilt from it."
)

FRAME_UNREADABLE = Code(
    5001,
    "A stored frame cannot be used",
    happened=(
        "A batch of records in a buffer does not decode, or contradicts itself: its bytes were damaged, or a "
        "program that is not Millstream wrote into the buffer."
    ),
    data=(
        _STOPPED
        + (
            "The records of the frame are stored as damaged bytes; `millstream repair` reports which of them can "
            "still be read. Records behind the frame wait."
        )
    ),
    do=_REPAIR,
)

MARK_UNREADABLE = Code(
    5002,
    "The mark of a lane cannot be read",
    happened=(
        "The mark, which records how far a lane has come, does not decode, so the lane cannot know where to continue."
    ),
    data=(
        "This lane has processed nothing since its start. Buffers and results are unchanged. Continuing from a "
        "guess would lose or repeat records, so the lane does not."
    ),
    do=_REPAIR,
)

LEDGER_CUT = Code(
    5003,
    "A ledger has lost its end or was set back",
    happened=(
        "A reader, a log, a sink or a watermark refers to something newer than what the ledger holds: the broker "
        "lost its last writes (for example in a power cut without fsync), an old copy of its store was restored, "
        "or the ledger was rebuilt."
    ),
    data=(
        "Records that were committed and are no longer in the ledger may be lost, or be processed twice if their "
        "source gives them again. No record that came after the cut was used."
    ),
    do=(
        _REPAIR
        + (
            " Afterwards, make sure that the broker keeps what it acknowledges (`sync_interval: always`, "
            "`appendfsync always`)."
        )
    ),
)

BUFFER_GAP = Code(
    5004,
    "Frames are missing in the middle of a buffer",
    happened="Frames of a lane are numbered, and one or more numbers are missing between two that are there.",
    data=(_STOPPED + "The records of the missing frames are lost unless the store can be restored."),
    do=_REPAIR,
)

LEDGER_GONE = Code(
    5005,
    "A ledger that was read is missing",
    happened=(
        "The stream or the keys that hold the buffers and marks of a vertex are no longer in the broker: they were "
        "removed by hand, or lost with files of its store."
    ),
    data="The records that waited in its buffers are missing, and so are the marks of its lanes.",
    do=("The broker's log says whether files of its store are damaged. " + _REPAIR),
)

MESSAGES_LOST = Code(
    5006,
    "The broker has lost messages to damaged files",
    happened="The broker reports that files of its store are damaged, and which messages it could not recover.",
    data=(
        "These messages may be frames, marks or remembered record ids. Lost frames are lost records; after a lost "
        "mark, an older mark lets records be processed twice; lost ids let repeated records in."
    ),
    do=_REPAIR,
)

COMMIT_TORN = Code(
    5007,
    "A commit is stored in part",
    happened=(
        "The broker holds the beginning of a commit and will not complete it. Older servers could do that at a crash."
    ),
    data=(
        "The commit was not acknowledged, so its input is processed again. Readers may have seen some of its "
        "records, and get them a second time."
    ),
    do=(_REPAIR + " Use the server version that docs/guarantees.md names."),
)

IDS_UNREADABLE = Code(
    5008,
    "Remembered ids of records cannot be read",
    happened=(
        "A source that may repeat records is checked by record ids, and a stored part of these ids does not decode."
    ),
    data=(
        "Nothing was accepted since the start. Without these ids, records that are sent again would be accepted a "
        "second time."
    ),
    do=_REPAIR,
)

STATE_UNREADABLE = Code(
    5011,
    "The stored state of a function cannot be read",
    happened="A part of the changelog of a lane's state does not decode, or is missing.",
    data=(
        "Outputs that were committed are complete. What the function remembers for its keys is not known, so the lane "
        "stops instead of going on without it."
    ),
    do=(
        "Restore the data of the broker from a backup. Otherwise `millstream repair` says which frames and which keys "
        "this is about; with `--accept-loss`, the lane goes on with what can be read, or with everything if its store "
        "on disk has it."
    ),
)

SAVEPOINT_DAMAGED = Code(
    5012,
    "A savepoint is damaged",
    happened="A file of the savepoint is missing, or is not what was written.",
    data="Nothing was changed: all files are checked before anything is used.",
    do="Bring the savepoint back from a copy, or use another one.",
)

WATERMARK_UNREADABLE = Code(
    5009,
    "The published watermark of a lane cannot be read",
    happened="The entry of a lane in the OT store does not decode.",
    data=(
        "No record is lost: the lane publishes the entry again at its start. Until then, windows that wait for it "
        "do not close."
    ),
    do="`millstream repair --accept-loss` removes the entry; then run the pipeline.",
)

STORED_CONTRADICTS = Code(
    5010,
    "What is stored contradicts itself",
    happened=(
        "The marks of a pipeline count, for example, more records read from a buffer than were written into it. "
        "Some of the stored data is not what was written; often it is an old copy of one part."
    ),
    data="It is not known which records are affected. Nothing was processed since the start.",
    do=_REPAIR,
)

SEGMENT_MISSING = Code(
    5101,
    "A segment of a reduce lane's log is missing",
    happened="A file of the log of open windows is missing, although other files show that it existed.",
    data=(
        "The records in it cannot be read. The message says what is affected; nothing was skipped, and no window "
        "was computed without them."
    ),
    do=_LOG,
)

SEGMENT_DAMAGED = Code(
    5102,
    "A segment of a reduce lane's log is damaged",
    happened=(
        "Bytes of a log file do not match their checksum, or the file was truncated in a place that a crash cannot "
        "explain."
    ),
    data=(
        "Records behind that place are not reliable. The message says what is affected; nothing was skipped, and "
        "no window was computed without them."
    ),
    do=_LOG,
)

SEGMENT_MISPLACED = Code(
    5103,
    "A file in a reduce lane's log does not belong there",
    happened="A segment is from another log, has been renamed or copied, or an old copy was put in its place.",
    data="Nothing of the log was used since the start, and nothing was changed.",
    do=("Put the right file back, or move the wrong one away. " + _LOG),
)

LOG_BEHIND_LEDGER = Code(
    5104,
    "A reduce lane's log lacks entries that its ledger relies on",
    happened=(
        "According to the mark of the lane, the log contains records that are not there: the directory was "
        "removed, replaced by an older copy, or written on a disk that did not keep it."
    ),
    data="Records that are acknowledged and stored only in the log would be lost. No window was closed without them.",
    do=_LOG,
)

RESULTS_LOST = Code(
    5105,
    "Results of windows are committed in part, and the rest is missing",
    happened=(
        "Results of one hand-over are committed in several parts. Some are committed, and the file with the others "
        "is missing or damaged."
    ),
    data=(
        "Windows whose results were committed are complete. The others of that hand-over would have to be computed "
        "again, possibly with other results, so the lane stops instead."
    ),
    do=_LOG,
)

MILESTONE_UNREADABLE = Code(
    5106,
    "A milestone of a reduce lane cannot be read",
    happened=(
        "With `keepInput`, a lane commits milestones from which its log can be rebuilt from the input. One of them "
        "does not decode."
    ),
    data=(
        "As long as the log is complete, nothing is lost. If it is not, its open windows cannot be recovered from "
        "the input."
    ),
    do=_REPAIR,
)

CHECKPOINT_UNREADABLE = Code(
    5107,
    "A checkpoint of open windows cannot be read",
    happened=(
        "The log of a reduce lane begins with a checkpoint of its open windows. The checkpoint does not decode, "
        "has the format of another version, or does not fit the log."
    ),
    data="No window was closed since the start. The log is unchanged.",
    do=("Restore the log; if the checkpoint has the format of another version, continue with that version. " + _LOG),
)

LOG_UNSTEADY = Code(
    5108,
    "The log changes while it is inspected",
    happened=(
        "Segments appeared and disappeared each time the command read the directory: a lane is writing, or "
        "something removes files."
    ),
    data="The command changed nothing, and no damage is known.",
    do="Try again. If it keeps happening while the pipeline is not running, find out what removes the files.",
)

SOURCE_FILE_CHANGED = Code(
    5201,
    "A file of a source changed while it was being read",
    happened=(
        "The source had read part of a file that is now shorter, missing or replaced, or that cannot be unpacked "
        "from there on."
    ),
    data=(
        "What was read before is committed and kept. It is not known whether the rest of the file is unchanged, so "
        "no more of it was read."
    ),
    do=("Restore the file; files of a source may grow but not change. Or start over with `--fresh`."),
)

POSITION_UNREADABLE = Code(
    5202,
    "The stored position of a source cannot be read",
    happened="The position in the mark of a source lane does not belong to such a source.",
    data=("Nothing was read. The position of the source is not known, so continuing would lose or repeat records."),
    do=_REPAIR,
)

SINK_AHEAD = Code(
    5203,
    "A sink's target knows more than the pipeline",
    happened=(
        "What the target stores of the lane ends with a record that the pipeline's buffer does not hold at that "
        "place: the data directory is older than the target, or was started over. Or another run of the pipeline "
        "wrote it."
    ),
    data="No record was left out or written twice so far. Continuing would do one of the two.",
    do=(
        "Restore the data directory that was in use when the target was written. Or start the target over, as the "
        "message says: move all files away together with the `.millstream` directory next to them, and let the lane "
        "begin there again; decide what to do with the rows in the table, and set the lane's position in the target to "
        "its mark. After that, the records behind the mark are written as they are now."
    ),
)

SINK_BEHIND = Code(
    5205,
    "A sink's target has lost what it had confirmed",
    happened=(
        "The position that the target keeps for the lane is before the mark, which never passes what the target "
        "has confirmed: the target was restored from an older copy, or a standby took over that had not received "
        "everything."
    ),
    data=(
        "The records between the two positions are no longer in the target, and the pipeline may have removed them "
        "from its buffers. Nothing was written since."
    ),
    do=(
        "Restore the target to a later state. To continue without those records, set the lane's position in the target "
        "to its mark, as the message says."
    ),
)

TARGET_POSITION_LOST = Code(
    5206,
    "The target of a sink no longer knows how far a lane has come",
    happened=(
        "A lane has written to the target, and the position that it keeps there is missing or cannot be read: it "
        "was removed, the target forgot it while the pipeline was not running, or this is another target with the "
        "same name: an empty one, a copy, or one on the disk of another machine, to which the lane has moved."
    ),
    data=(
        "Nothing was written. Records that were committed in the target right before the pipeline stopped, but are "
        "not in the lane's mark, would be written twice."
    ),
    do=(
        "If the former target still exists, bring it back, or run the lane on the machine that has it. Otherwise, "
        "or if you emptied the target, compare its end with what the pipeline sends next. The message says how to let "
        "the lane continue after its mark; another path or table in the settings is a new target. To prevent this, let "
        "the target keep positions for longer than the pipeline may be stopped, and put files of lanes that may run on "
        "several machines on storage that these share."
    ),
)

SOURCE_RECORDS_REMOVED = Code(
    5207,
    "Records were removed before a source had read them",
    happened=(
        "The position of a source lane no longer exists: the external system has removed records because of their "
        "age or number, or what the source reads was recreated under the same name."
    ),
    data="What was read before is kept. Nothing was skipped: continuing would leave the removed records out.",
    do=(
        "Restore the records, if they still exist somewhere. Otherwise read the remaining ones with a source of "
        "another name, or start over with `--fresh`. Keep records in the external system for longer than the "
        "pipeline may be stopped."
    ),
)

SOURCE_PAST_REPLACED = Code(
    5209,
    "What a source has read was replaced",
    happened=(
        "The external system has gone back to a state from before something that a source has read: it was "
        "restored from a backup, or a standby without the last changes has taken over. Or a table was truncated "
        "while the snapshot of its rows was interrupted."
    ),
    data="What was read before is kept. Nothing was skipped, and nothing of the other state was read.",
    do=(
        "Restore the former state, if it still exists somewhere. Otherwise start over with `--fresh`, or with a "
        "source of another name, and clean the outputs of what they contain of the lost state."
    ),
)

SOURCE_DIFFERS = Code(
    5208,
    "A source gives other records than before",
    happened=(
        "The pipeline stopped between records that a source gives only together: a read that did not fit one commit, "
        "or an answer of a server. The committed records were read again, in order to be skipped, and they differ."
    ),
    data="What was committed is kept. Nothing was skipped: continuing would lose records, or process them twice.",
    do=(
        "Restore the source's data. If that is not possible, continue with a source of another name, or start over "
        "with `--fresh`. A source of your own must always give the same records from the same position."
    ),
)

SINK_FILES_OVERLAP = Code(
    5204,
    "Two files of a file sink hold the same records",
    happened="Their names show it: one was copied or renamed, or comes from another run.",
    data="Programs that read the directory now read these records twice. Nothing more was written.",
    do="Find out which one does not belong there, and move it out of the directory.",
)

RUN_FILE_UNREADABLE = Code(
    5301,
    "A file of the data directory cannot be read",
    happened=("`runtime.json`, `status.json` or another small file that a run writes for others to read is invalid."),
    data=(
        "These files contain no records, marks or windows: the broker's store and the logs of reduces are not affected."
    ),
    do="Remove the file that the message names; the next run writes it again.",
)

SHAPE_UNREADABLE = Code(
    5302,
    "What the stored data depends on is unknown",
    happened=(
        "`shape.json` or `pipeline.json` in the data directory, which say which pipeline the data belongs to, are "
        "missing or damaged, or do not match each other."
    ),
    data="Nothing was changed. The stored data is kept.",
    do=(
        "Restore the file. If the pipeline has not been changed since, running it as it was writes `pipeline.json` "
        "again. Or start over with `--fresh`."
    ),
)
