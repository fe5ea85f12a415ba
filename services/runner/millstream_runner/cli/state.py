"""`millstream state`: what functions remember, as it is committed, and changes of it, while the pipeline runs or does
not.

    list, get, export    the last commit of each lane, from the broker
    watch                what changes, as it is committed
    import, edit, delete changes, as commits of the lanes: of those that run, or of this process, which takes them over

Reading asks the broker of a running pipeline; for one that is not running a broker is started on its store for the
moment.
"""

from __future__ import annotations

import argparse
import asyncio
import heapq
import json
import shlex
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack, aclosing, suppress
from dataclasses import asdict
from functools import partial
from typing import Any

from millstream import codes
from millstream.errors import UserError
from millstream.json_parser import parse_json
from millstream.plan import resolved
from millstream.plurals import counted
from millstream.printable import in_line
from millstream.udf.states import StateKind
from millstream_runner.cli.answer import answer
from millstream_runner.cli.elsewhere import access_elsewhere, open_elsewhere, pipeline_elsewhere
from millstream_runner.cli.place import directory_of
from millstream_runner.local import audit
from millstream_runner.local.changing import check_complete
from millstream_runner.local.changing_states import (
    Expectation,
    MadeChange,
    StateChange,
    StatefulVertex,
    begin,
    declared_states,
    delete_entries,
    entries_by_lane,
    loaded_as_stored,
    resolved_of,
    store_entries,
)
from millstream_runner.local.directory import DataDirectory, root_of
from millstream_runner.local.formatting import time_text
from millstream_runner.local.live_edits import (
    LaneEdits,
    LiveEdits,
    edits_to_store,
    expected_now,
    live_deletions,
)
from millstream_runner.local.processes import is_alive
from millstream_runner.local.state_files import read_rows, rows_written
from millstream_runner.local.state_rows import StateForm, row_of, shown_of
from millstream_runner.local.stored import open_run
from millstream_runner.local.stored_states import LaneState, StoredEntry, check_remembers, form_of, stored_states
from millstream_runner.local.until_over import until_over
from millstream_runner.local.view import PipelineView
from millstream_runner.local.watching_states import ChangedEntry, changed_entries
from millstream_udf.timer_entries import CLOCK_NAMES
from millstream_vertex.keyed.image import Versioned
from millstream_vertex.keyed.image import parts_of as stored_parts
from millstream_vertex.keyed.keys import key_of, parts_of
from millstream_vertex.keyed.timers import timer_of

_VALUE_CHARS_MAX = 200
_GONE = "is gone"
_VALUES = ("value", "before", "after")
_NOTED_CHARS_MAX = 1000

Opening = AbstractAsyncContextManager[PipelineView]


def run(arguments: argparse.Namespace) -> int:
    return _ACTIONS[arguments.action](arguments)


# Reading


class _Read:
    """What a command reads."""

    def __init__(self, arguments: argparse.Namespace) -> None:
        what = {"vertex": arguments.vertex, "key": list(arguments.key or ()), "what": arguments.action}
        self.directory: DataDirectory | None = None
        """None for a pipeline elsewhere."""
        elsewhere = pipeline_elsewhere(arguments)
        if elsewhere is not None:
            self.plan, access = elsewhere.plan, access_elsewhere(arguments, elsewhere.plan)
            check_remembers(self.plan, arguments.vertex)
            audit.note_elsewhere(elsewhere, "state", **what, broker=access.place, access=access.identity)
            self.opening: Opening = open_elsewhere(self.plan, access)
            return
        self.directory = _directory_of(arguments)
        self.plan = resolved.load(self.directory.read_pipeline()).plan
        check_remembers(self.plan, arguments.vertex)
        audit.note(self.directory, "state", **what)
        self.opening = open_run(self.directory, self.plan)


def _directory_of(arguments: argparse.Namespace) -> DataDirectory:
    """The data directory of the run; also of one that has not run yet, and only had its state imported."""
    if arguments.of is not None and arguments.pipeline is None:
        from millstream.spec.loading import load

        directory = DataDirectory(root_of(load(arguments.of).pipeline.name, arguments.data_dir))
        if directory.shape.exists():
            return directory
    return directory_of(arguments)


def _get(arguments: argparse.Namespace) -> int:
    arguments.prefix, arguments.after, arguments.count = None, None, 0
    return _list(arguments)


def _list(arguments: argparse.Namespace) -> int:
    return asyncio.run(_show(_Read(arguments), arguments))


async def _show(read: _Read, arguments: argparse.Namespace) -> int:
    shown, left, last = 0, 0, b""
    after = key_of([part.encode() for part in arguments.after]) if arguments.after else None
    async with read.opening as view:
        lanes = [lane async for lane in stored_states(view, read.plan, arguments.vertex)]
        for lane, entry in _by_key(lanes):
            if not _is_wanted(entry, arguments) or (after is not None and entry.stored_key <= after):
                continue
            # A page has whole keys, so that the next one begins after a key.
            if arguments.count and shown >= arguments.count and entry.stored_key != last:
                left += 1
                continue
            shown, last = shown + 1, entry.stored_key
            print(json.dumps(_row(entry) | lane.place) if arguments.json else _line(entry))
    if not arguments.json:
        size = sum(lane.keyed.size for lane in lanes)
        after_last = "".join(f" --after={shlex.quote(in_line(part))}" for part in _text_parts(last))
        more = f"; {left:,} more follow (`{after_last.strip()}`)" if left else ""
        print(f"{counted(shown, 'entry', 'entries')} of {counted(len(lanes), 'lane')}, which have {size:,} bytes{more}")
    return 0


def _by_key(lanes: Sequence[LaneState]) -> Iterator[tuple[LaneState, StoredEntry]]:
    """The entries of all lanes, ordered by key."""

    def of(lane: LaneState) -> Iterator[tuple[LaneState, StoredEntry]]:
        return ((lane, entry) for entry in lane.entries())

    return heapq.merge(*map(of, lanes), key=lambda pair: pair[1].stored_key)


def _is_wanted(entry: StoredEntry, arguments: argparse.Namespace) -> bool:
    return _is_named(entry.stored_key, entry.state.name, arguments)


def _is_named(key: bytes, state: str, arguments: argparse.Namespace) -> bool:
    """Whether an entry has the key, or the prefix, and the state that the command names."""
    parts = _text_parts(key)
    if arguments.key and parts != tuple(arguments.key):
        return False
    if arguments.prefix and not (parts and parts[0].startswith(arguments.prefix)):
        return False
    return arguments.name is None or state == arguments.name


def _text_parts(key: bytes) -> tuple[str, ...]:
    return tuple(part.decode(errors="backslashreplace") for part in parts_of(key))


def _row(entry: StoredEntry) -> dict[str, Any]:
    return row_of(entry.form, entry.stored_key, entry.item, entry.stored)


def _line(entry: StoredEntry) -> str:
    return _text(entry.form, entry.stored_key, entry.item, entry.stored)


def _text(form: StateForm, key: bytes, item: bytes, stored: Versioned | None) -> str:
    named = in_line(", ".join(_text_parts(key))) or "(the lane)"
    place = f"[{_shown(shown_of(item, form.of_item))}]" if form.kind.has_items else ""
    if stored is None:
        return f"{named}  {form.name}{place} {_GONE}"
    if form.kind is StateKind.TIMER:
        timer = timer_of(key, item, stored.value)
        of = f"({CLOCK_NAMES[timer.clock]} time)"
        held = f", outputs from {time_text(timer.event_us)} on" if timer.holds else ""
        return f"{named}  timer {in_line(timer.name.decode())} at {time_text(timer.at_us)} {of}{held}"
    expires = f"  (expires {time_text(stored.expires_us)})" if stored.expires_us else ""
    return f"{named}  {form.name}{place} = {_shown(shown_of(stored.value, form.of_value))}{expires}"


def _shown(value: Any) -> str:
    text = in_line(value if isinstance(value, str) else json.dumps(value))
    return text if len(text) <= _VALUE_CHARS_MAX else f"{text[:_VALUE_CHARS_MAX]}... ({len(text):,} characters)"


def _export(arguments: argparse.Namespace) -> int:
    exported = asyncio.run(_write(_Read(arguments), arguments))
    said = f"{counted(exported, 'entry', 'entries')} exported"
    if arguments.to is not None:
        answer(arguments, {"exported": exported, "to": str(arguments.to)}, [f"{said} to {arguments.to}"])
    else:
        print(said, file=sys.stderr)
    return 0


async def _write(read: _Read, arguments: argparse.Namespace) -> int:
    exported = 0
    async with AsyncExitStack() as stack:
        # The file is whole only when everything was read.
        if arguments.to is not None:
            write: Callable[[Mapping[str, Any]], None] = stack.enter_context(rows_written(arguments.to))
        else:
            write = _print_row
        view = await stack.enter_async_context(read.opening)
        async for lane in stored_states(view, read.plan, arguments.vertex):
            for entry in lane.entries():
                # What is exported can be imported, and tables have what comes by their edges.
                if not _is_wanted(entry, arguments) or entry.kind is StateKind.TABLE:
                    continue
                row = _row(entry)
                if not entry.stored_key:
                    row["partition"] = lane.lane.partition
                write(row)
                exported += 1
    return exported


def _print_row(row: Mapping[str, Any]) -> None:
    print(json.dumps(row))


def _watch(arguments: argparse.Namespace) -> int:
    read = _Read(arguments)
    if read.directory is not None:
        runtime = read.directory.read_runtime()
        if runtime is None or not is_alive(runtime.runner):
            raise UserError(
                codes.NO_SUCH_RUN,
                f"pipeline {read.plan.pipeline.name} is not running, so nothing changes; `millstream state list` shows "
                "what it remembers",
            )
    # Ctrl-C is the usual way to end it.
    with suppress(KeyboardInterrupt):
        asyncio.run(_follow(read, arguments))
    return 0


async def _follow(read: _Read, arguments: argparse.Namespace) -> None:
    async with (
        read.opening as view,
        until_over(read.directory, lambda: None),
        aclosing(changed_entries(view, read.plan, arguments.vertex)) as changes,
    ):
        async for change in changes:
            if not _is_named(change.key, change.form.name, arguments):
                continue
            print(json.dumps(_changed_row(change)) if arguments.json else _changed_line(change))
            sys.stdout.flush()


def _changed_line(change: ChangedEntry) -> str:
    return _text(change.form, change.key, change.item, change.stored)


def _changed_row(change: ChangedEntry) -> dict[str, Any]:
    row = row_of(change.form, change.key, change.item, change.stored or Versioned(b"", 0, 1))
    if change.stored is None:
        row = {name: row[name] for name in row if not name.startswith(("value", "version"))} | {"deleted": True}
    return row | {"partition": change.lane.partition, "sequence": change.sequence}


# Changing


def _target(arguments: argparse.Namespace, *, may_begin: bool = False) -> tuple[StatefulVertex, Callable[[], None]]:
    """The vertex to be changed, and what to call before it is. `may_begin`: the pipeline may never have run, and gets
    its data directory then."""
    if arguments.of is None:
        directory = directory_of(arguments)
        pipeline = resolved.load(directory.read_pipeline())
        check_complete(directory)
        check_remembers(pipeline.plan, arguments.vertex)
        return StatefulVertex(directory, pipeline, arguments.vertex), lambda: None
    loaded, directory, has_data = loaded_as_stored(arguments.of, arguments.data_dir)
    check_remembers(loaded.plan, arguments.vertex)
    if not has_data and not may_begin:
        raise UserError(codes.NO_SUCH_RUN, f"{loaded.pipeline.name} has never run in {directory.root}")
    of = StatefulVertex(directory, resolved_of(loaded), arguments.vertex)
    return of, (lambda: None) if has_data else partial(begin, loaded, directory)


def _import(arguments: argparse.Namespace) -> int:
    of, begin_once = _target(arguments, may_begin=True)

    async def change() -> StateChange:
        declared = await declared_states(of.pipeline, of.vertex)
        rows = (row for path in arguments.files for row in read_rows(path))
        entries = entries_by_lane(of, declared, rows)
        count = sum(map(len, entries.values()))
        begin_once()
        audit.note(of.directory, "import", vertex=of.vertex, entries=count, files=list(map(str, arguments.files)))
        if of.runs:
            return await _live(of, "import", edits_to_store(declared, entries))
        return await store_entries(of, declared, entries)

    return _tell(arguments, asyncio.run(change()), "imported")


def _edit(arguments: argparse.Namespace) -> int:
    of, _ = _target(arguments)
    row: dict[str, Any] = {"key": list(arguments.key), "state": arguments.name, "value": _value(arguments)}
    if arguments.item is not None:
        row["item"] = _json(arguments.item, "--item")
    if arguments.partition is not None:
        row["partition"] = arguments.partition

    async def change() -> StateChange:
        declared = await declared_states(of.pipeline, of.vertex)
        entries = entries_by_lane(of, declared, [("--value", row)])
        expected = _expectation(arguments)
        audit.note(of.directory, "edit", vertex=of.vertex, **_hidden(of, row))
        if of.runs:
            now = await expected_now(of, entries, expected) if expected is not None else ()
            return await _live(of, "edit", edits_to_store(declared, entries, keep_expiry=True, expected=now))
        done = await store_entries(of, declared, entries, keep_expiry=True, expected=expected)
        _note_made(of, "edit", done)
        return done

    return _tell(arguments, asyncio.run(change()), "set")


def _expectation(arguments: argparse.Namespace) -> Expectation | None:
    if arguments.if_absent:
        if arguments.if_value is not None:
            raise UserError(codes.OPTIONS_CONFLICT, "--if VALUE and --if-absent cannot both be so: give one of them")
        return Expectation(is_absent=True)
    return None if arguments.if_value is None else Expectation(_json(arguments.if_value, "--if"))


async def _live(of: StatefulVertex, action: str, edits: LaneEdits) -> StateChange:
    """Have the running lanes make these changes."""
    live = LiveEdits(of, edits)
    try:
        return await live.make()
    finally:
        _note_made(of, action, live.done)


def _note_made(of: StatefulVertex, action: str, done: StateChange) -> None:
    """Record what was before and after. The change was recorded before it was made, so it is not taken back if this
    cannot be."""
    if not done.changed:
        return
    made = [_hidden(of, _made_row(one)) for one in done.made]
    more = {"more": done.changed - len(made)} if done.changed > len(made) else {}
    audit.note_going(
        of.directory,
        lambda text: print(text, file=sys.stderr),
        f"{action} made",
        **{"vertex": of.vertex, "commits": done.commits, "made": made, **more},
    )


def _made_row(made: MadeChange) -> dict[str, Any]:
    form, before, after = form_of(made.state), made.before, made.after
    rows = [
        {} if one is None else row_of(form, made.key, made.item, Versioned(*stored_parts(one)))
        for one in (before, after)
    ]
    row = {name: value for name, value in (rows[0] or rows[1]).items() if name.startswith(("key", "state", "item"))}
    for name, one in zip(("before", "after"), rows, strict=True):
        row[name] = one.get("value", one.get("value_base64"))
    return row


def _hidden(of: StatefulVertex, row: Mapping[str, Any]) -> dict[str, Any]:
    """A row without its values, if the pipeline shows none to people."""
    if of.plan.pipeline.spec.logging.values:
        return {name: _short(value) if name in _VALUES else value for name, value in row.items()}
    return {name: value for name, value in row.items() if name not in _VALUES}


def _short(value: Any) -> Any:
    text = json.dumps(value)
    return value if len(text) <= _NOTED_CHARS_MAX else f"{text[:_NOTED_CHARS_MAX]}... ({len(text):,} characters)"


def _value(arguments: argparse.Namespace) -> Any:
    if arguments.value is not None:
        return _json(arguments.value, "--value")
    return _json(sys.stdin.read(), "standard input")


def _json(text: str, what: str) -> Any:
    try:
        return parse_json(text)
    except ValueError as error:
        raise UserError(codes.OPTION_VALUE, f"{what} is not JSON ({error}); a text needs quotes: '\"text\"'") from None


def _delete(arguments: argparse.Namespace) -> int:
    if not arguments.key and arguments.prefix is None and arguments.name is None:
        raise UserError(
            codes.OPTION_VALUE, "say what to delete: --key PART, --prefix TEXT (all keys: --prefix ''), or --name STATE"
        )
    of, _ = _target(arguments)
    named = {"key": list(arguments.key or ()), "prefix": arguments.prefix, "state": arguments.name}
    audit.note(of.directory, "delete", vertex=of.vertex, **named)

    def is_wanted(entry: StoredEntry) -> bool:
        return _is_wanted(entry, arguments)

    async def change() -> StateChange:
        if of.runs:
            return await _live(of, "delete", await live_deletions(of, is_wanted))
        done = await delete_entries(of, is_wanted)
        _note_made(of, "delete", done)
        return done

    return _tell(arguments, asyncio.run(change()), "deleted")


def _tell(arguments: argparse.Namespace, done: StateChange, what: str) -> int:
    same = f", {done.unchanged:,} were like that before" if done.unchanged else ""
    where = ", ".join(f"{one['lane']} (epoch {one['epoch']}, sequence {one['sequence']})" for one in done.commits[:4])
    more = f" and {len(done.commits) - 4:,} more commits" if len(done.commits) > 4 else ""
    line = f"{counted(done.changed, 'entry', 'entries')} {what}{same}{f' in {where}{more}' if where else ''}"
    facts = {name: value for name, value in asdict(done).items() if name != "made"}
    answer(arguments, facts, [line])
    return 0


_ACTIONS: Mapping[str, Callable[[argparse.Namespace], int]] = {
    "list": _list,
    "get": _get,
    "watch": _watch,
    "export": _export,
    "import": _import,
    "edit": _edit,
    "delete": _delete,
}
