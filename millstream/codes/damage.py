"""Codes of stored data that is damaged, or is not what was stored: 5xxx."""

from __future__ import annotations

from millstream.codes.code import Code

_STOPPED = "The lane stopped before it used anything of it, and what was committed before is as it was. "

_REPAIR = (
    "Keep a copy of the data directory. Restore what is damaged from a copy or a replica if you have "
    "one. Otherwise `millstream repair` lists what is damaged and what it affects, and with "
    "`--accept-loss` goes on without it; or start the pipeline over with `--fresh`."
)

_LOG = (
    "Keep a copy of the directory, and look at it with `millstream wal --verify`. Put the right files "
    "back if you have them. Otherwise `millstream repair` says what is lost: where the lane keeps its "
    "input (`keepInput`) the log can be rebuilt from it."
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
            "The records of the frame wait in the buffer as damaged bytes; which of them can still be read, "
            "`millstream repair` says. What lies behind the frame waits."
        )
    ),
    do=_REPAIR,
)

MARK_UNREADABLE = Code(
    5002,
    "The mark of a lane cannot be read",
    happened=("The mark, which says how far a lane has come, does not decode, so the lane cannot know where to go on."),
    data=(
        "Nothing was processed by this lane since its start. Buffers and results are as they were. Going on "
        "from a guess would lose or repeat records, so the lane does not."
    ),
    do=_REPAIR,
)

LEDGER_CUT = Code(
    5003,
    "A ledger has lost its end or was set back",
    happened=(
        "A reader, a log, a sink or a watermark knows of something newer than what the ledger holds: the "
        "broker lost its last writes (a power cut without fsync, say), an old copy of its store was put "
        "back, or the ledger was rebuilt."
    ),
    data=(
        "Records that were committed and are not in the ledger any more may be lost, or be processed twice "
        "where their source gives them again. No record that came after the cut was used."
    ),
    do=(
        _REPAIR
        + (
            " Afterwards see that the broker keeps what it acknowledges (`sync_interval: always`, `appendfsync "
            "always`)."
        )
    ),
)

BUFFER_GAP = Code(
    5004,
    "Frames are missing in the middle of a buffer",
    happened="Frames of a lane are numbered, and one or more numbers are not there between two that are.",
    data=(_STOPPED + "The records of the missing frames are lost unless the store can be restored."),
    do=_REPAIR,
)

LEDGER_GONE = Code(
    5005,
    "A ledger that was read is gone",
    happened=(
        "The stream or the keys that hold the buffers and marks of a vertex are not in the broker any more: "
        "removed by hand, or lost with files of its store."
    ),
    data="What waited in its buffers is not there, and neither are the marks of its lanes.",
    do=("The broker's log says whether files of its store are damaged. " + _REPAIR),
)

MESSAGES_LOST = Code(
    5006,
    "The broker has lost messages to damaged files",
    happened="The broker says that files of its store are damaged, and which messages it could not recover.",
    data=(
        "These messages may be frames, marks or remembered ids of records: frames are records that are lost, "
        "an older mark lets records be processed twice, and lost ids let repeated records in."
    ),
    do=_REPAIR,
)

COMMIT_TORN = Code(
    5007,
    "A commit is stored in part",
    happened=(
        "The broker holds the beginning of a commit and will not complete it. Older servers did that at a crash."
    ),
    data=(
        "The commit was not acknowledged, so its input is processed again. Readers may have seen records of "
        "the part, and get them a second time."
    ),
    do=(_REPAIR + " Use the server version that docs/guarantees.md names."),
)

IDS_UNREADABLE = Code(
    5008,
    "Remembered ids of records cannot be read",
    happened=(
        "A source that may repeat itself is checked by the ids of its records, and a stored part of these "
        "ids does not decode."
    ),
    data=(
        "Nothing was taken in since the start. Without these ids, records that are sent again would be taken "
        "in a second time."
    ),
    do=_REPAIR,
)

WATERMARK_UNREADABLE = Code(
    5009,
    "The published watermark of a lane cannot be read",
    happened="The entry of a lane in the OT store does not decode.",
    data=(
        "No record is lost by it: the lane publishes the entry again at its start. Until then no window that "
        "waits for it closes."
    ),
    do="`millstream repair --accept-loss` removes the entry; then run the pipeline.",
)

STORED_CONTRADICTS = Code(
    5010,
    "What is stored contradicts itself",
    happened=(
        "The marks of a pipeline count more records read from a buffer than were written into it, or "
        "something like it. A part of what is stored is not what was written: often an old copy of one part."
    ),
    data="Which records it concerns is not known. Nothing was processed since the start.",
    do=_REPAIR,
)

SEGMENT_MISSING = Code(
    5101,
    "A segment of a reduce lane's log is missing",
    happened="A file of the log of open windows is not there, though others show that it was.",
    data=(
        "The records in it cannot be read. The message names what of them is affected; nothing was skipped, "
        "and no window was computed without them."
    ),
    do=_LOG,
)

SEGMENT_DAMAGED = Code(
    5102,
    "A segment of a reduce lane's log is damaged",
    happened=(
        "Bytes of a file of the log do not have the checksum they should have, or the file was cut, in a "
        "place that a crash cannot explain."
    ),
    data=(
        "Records behind that place cannot be relied on. The message names what is affected; nothing was "
        "skipped, and no window was computed without them."
    ),
    do=_LOG,
)

SEGMENT_MISPLACED = Code(
    5103,
    "A file in a reduce lane's log does not belong there",
    happened="A segment is of another log, has been renamed or copied, or an old copy was put in its place.",
    data="Nothing of the log was used since the start, and nothing was changed.",
    do=("Put the right file back, or move the wrong one away. " + _LOG),
)

LOG_BEHIND_LEDGER = Code(
    5104,
    "A reduce lane's log lacks what its ledger counts on",
    happened=(
        "The mark of the lane says that records are in the log which are not: the directory was removed, "
        "replaced by an older copy, or written on a disk that did not keep it."
    ),
    data="Records that are acknowledged and only in the log would be lost. No window was closed without them.",
    do=_LOG,
)

RESULTS_LOST = Code(
    5105,
    "Results of windows are committed in part, and the rest is gone",
    happened=(
        "Results of one hand-over are committed in several parts. Some are, and the file with the others is "
        "gone or damaged."
    ),
    data=(
        "Windows whose results were committed have them. The others of that hand-over would be computed "
        "again, which may give other results, so the lane stops instead."
    ),
    do=_LOG,
)

MILESTONE_UNREADABLE = Code(
    5106,
    "A milestone of a reduce lane cannot be read",
    happened=(
        "With `keepInput` a lane commits milestones, by which its log can be rebuilt from the input. One "
        "does not decode."
    ),
    data=(
        "As long as the log is whole, nothing is lost. If it is not, its open windows cannot be recovered "
        "from the input."
    ),
    do=_REPAIR,
)

CHECKPOINT_UNREADABLE = Code(
    5107,
    "A checkpoint of open windows cannot be read",
    happened=(
        "The log of a reduce lane begins with a checkpoint of its open windows, and that does not decode, "
        "has the format of another version, or does not fit the log."
    ),
    data="No window was closed since the start. The log is as it was.",
    do=("Restore the log; where the format is of another version, continue with that. " + _LOG),
)

LOG_UNSTEADY = Code(
    5108,
    "The log changes while it is looked at",
    happened=(
        "Segments came and went each time the command read the directory: a lane is writing, or something "
        "removes files."
    ),
    data="Nothing was changed by the command, and nothing is known to be damaged.",
    do="Look again. If it stays so while the pipeline does not run, find out what removes the files.",
)

SOURCE_FILE_CHANGED = Code(
    5201,
    "A file of a source changed while it was being read",
    happened=(
        "The source had read a part of a file that is now shorter, gone, another one, or cannot be unpacked "
        "from there on."
    ),
    data=(
        "What was read before is committed and is kept. Whether the rest of the file is what it was is not "
        "known, so nothing more of it was read."
    ),
    do=("Put the file back as it was; files of a source may grow but not change. Or start over with `--fresh`."),
)

POSITION_UNREADABLE = Code(
    5202,
    "The stored position of a source cannot be read",
    happened="The position in the mark of a source lane is not one of such a source.",
    data=("Nothing was read. Where the source had come to is not known, so going on would lose or repeat records."),
    do=_REPAIR,
)

SINK_AHEAD = Code(
    5203,
    "A sink's target knows more than the pipeline",
    happened=(
        "What the target keeps of the lane ends with a record that the pipeline's buffer does not hold there: the data "
        "directory is older than the target, or was started over. Or another run of the pipeline wrote it."
    ),
    data="No record was left out or written twice so far. Going on would do one of the two.",
    do=(
        "Put back the data directory that was there when the target was written. Or start the target over, as the "
        "message says: move all files away together with the `.millstream` directory beside them; see to the rows that "
        "are in the table, and delete the lane's row of the table of positions. After that, what lies behind the "
        "mark is written as it is now."
    ),
)

SINK_BEHIND = Code(
    5205,
    "A sink's target has lost what it had confirmed",
    happened=(
        "The position that the target keeps of the lane is before the mark, which only passes what the target has "
        "confirmed: the target was restored from an older copy, or a standby took over that had not received all."
    ),
    data=(
        "The records between the two positions are in the target no more, and the pipeline may have removed them from "
        "its buffers. Nothing was written since."
    ),
    do=(
        "Restore the target to a later state. To go on without those records, delete the lane's row of the table of "
        "positions as the message says: the lane then goes on from its mark."
    ),
)

TARGET_POSITION_LOST = Code(
    5206,
    "The target of a sink does not say any more how far a lane is",
    happened=(
        "A lane has written to the target, and the position that it keeps there is gone or cannot be read: it was "
        "removed, or the target forgot it while the pipeline did not run."
    ),
    data=(
        "Nothing was written. Records that were committed in the target right before the pipeline stopped, and are not "
        "in the lane's mark, would be written twice."
    ),
    do=(
        "Compare the end of the target with what the pipeline sends next. The message says how to let the lane "
        "continue after its mark. To prevent it, have the target keep positions for longer than the pipeline may stand "
        "still."
    ),
)

SOURCE_RECORDS_REMOVED = Code(
    5207,
    "Records were removed before a source had read them",
    happened=(
        "The place where a source lane stands is not there any more: the outside system has removed records by their "
        "age or number, or what the source reads was recreated under the same name."
    ),
    data="What was read before is kept. Nothing was skipped: going on would leave the removed records out.",
    do=(
        "Put the records back, if they are anywhere. Otherwise read what is left with a source of another name, or "
        "start over with `--fresh`. Keep records outside for longer than the pipeline may stand still."
    ),
)

SOURCE_PAST_REPLACED = Code(
    5209,
    "What a source has read was replaced",
    happened=(
        "The outside system has gone back to a state from before something that a source has read: it was restored "
        "from a backup, or a standby without the last changes has taken over. Or a table was emptied while the "
        "snapshot of its rows was interrupted."
    ),
    data="What was read before is kept. Nothing was skipped, and nothing of the other state was read.",
    do=(
        "Put the former state back, if it is anywhere. Otherwise start over with `--fresh`, or with a source of "
        "another name, and see to what the outputs have of the state that is gone."
    ),
)

SOURCE_DIFFERS = Code(
    5208,
    "A source gives other records than before",
    happened=(
        "What one read of the source became was more than one commit, and the pipeline stopped within it. The records "
        "that are committed were read again, to be left out, and they are not the same."
    ),
    data="What was committed is kept. Nothing was skipped: going on would lose records, or process them twice.",
    do=(
        "Put the source's data back as it was. Where that cannot be done, go on with a source of another name, or "
        "start over with `--fresh`. A source of your own has to give the same records from the same position, always."
    ),
)

SINK_FILES_OVERLAP = Code(
    5204,
    "Two files of a file sink hold the same records",
    happened="Their names say so: one was copied or renamed, or comes from another run.",
    data="Who reads the directory now reads these records twice. Nothing more was written.",
    do="Find out which one does not belong there, and move it out of the directory.",
)

RUN_FILE_UNREADABLE = Code(
    5301,
    "A file of the data directory cannot be read",
    happened=(
        "`runtime.json`, `status.json` or another small file that a run writes for others to look at is not "
        "what it should be."
    ),
    data=(
        "Records, marks and windows do not lie in these files: the broker's store and the logs of reduces "
        "are not concerned."
    ),
    do="Remove the file that the message names; the next run writes it again.",
)

SHAPE_UNREADABLE = Code(
    5302,
    "What the stored data depends on is unknown",
    happened=(
        "`shape.json` or `pipeline.json` of the data directory, which say to which pipeline the data "
        "belongs, are gone, damaged, or do not fit each other."
    ),
    data="Nothing was changed. The stored data is kept.",
    do=(
        "Restore the file. Where the pipeline was not changed since, running it as it was writes "
        "`pipeline.json` again. Or start over with `--fresh`."
    ),
)
