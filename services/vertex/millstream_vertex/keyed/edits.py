"""Edits: changes of the state of a lane that are asked for while the lane runs. Pure.

    edit ─► states by name ─► as it is already? ─► as expected? ─► within the limits? ─► changes of the state
                  └─► refused, by name, and nothing is changed ◄────────────┘

Whoever owns the lane makes an edit, and commits the changes, the result, and the place of the edit in the inbox
together. So an edit is made once, and one that is asked for again finds everything as it is to be.

Above it: the inbox, the stage, and the state of a lane that no process runs. Below it: the state of the lane.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from google.protobuf.message import DecodeError

from millstream.limits import FRAME_BYTES_MAX
from millstream.udf.states import DeclaredState
from millstream.wire.state.v1 import state_pb2
from millstream_vertex.keyed.image import add_row, expires_us_of, parts_of, rows_of, size_of, stored_of
from millstream_vertex.keyed.state import EntryChange, KeyedState
from millstream_vertex.keyed.steps import STEP_BYTES_MAX, Entries, decode_step, encode_steps

EDIT_BYTES_MAX = STEP_BYTES_MAX
"""Bytes of the entries of an edit, and of what they were before, unless it has a single one: it is one commit, beside
slots that are written anew."""
BEFORE_BYTES_MAX = STEP_BYTES_MAX
"""Bytes of the entries that a result says as they were."""
assert BEFORE_BYTES_MAX < FRAME_BYTES_MAX


class Edit(NamedTuple):
    """Changes that are made together or not at all."""

    id: str
    """Names it in its result."""
    states: Sequence[state_pb2.StoredState]
    entries: Sequence[EntryChange]
    """What entries are to be; each names its state by its index in `states`."""
    expected: Sequence[EntryChange] = ()
    """The values that entries have to have before; None: there is no such entry. Their times and versions do not
    count."""
    keeps_expiry: bool = False
    """Whether an entry that exists expires when it would have."""

    def encode(self) -> bytes:
        return state_pb2.Edit(
            id=self.id,
            states=self.states,
            entries=_encoded(self.entries),
            expected=_encoded(self.expected),
            keeps_expiry=self.keeps_expiry,
        ).SerializeToString()


class EditResult(NamedTuple):
    """What became of an edit."""

    id: str
    refused: str = ""
    """Why nothing was changed; empty if the edit was made."""
    changed: int = 0
    """Entries that are different now."""
    unchanged: int = 0
    """Entries that were like that before."""
    epoch: int = 0
    """Of the commit."""
    before: Sequence[EntryChange] | None = ()
    """Those that are different now, as they were before, with states as in the edit; None if they have more than
    `BEFORE_BYTES_MAX`."""
    before_bytes: int = 0

    def encode(self) -> bytes:
        return state_pb2.EditResult(
            id=self.id,
            refused=self.refused,
            changed=self.changed,
            unchanged=self.unchanged,
            epoch=self.epoch,
            before=_encoded(self.before or ()),
            before_bytes=self.before_bytes,
        ).SerializeToString()


def decode_edit(data: bytes) -> Edit:
    """The inverse of `Edit.encode`. Raises `ValueError`."""
    try:
        message = state_pb2.Edit.FromString(data)
    except DecodeError as error:
        raise ValueError(f"it is not an edit: {error}") from error
    edit = Edit(message.id, message.states, _decoded(message.entries), _decoded(message.expected), message.keeps_expiry)
    if any(one.state >= len(edit.states) for one in (*edit.entries, *edit.expected)):
        raise ValueError("an entry is of a state that the edit does not have")
    return edit


def decode_result(data: bytes) -> EditResult:
    """The inverse of `EditResult.encode`. Raises `ValueError`."""
    try:
        message = state_pb2.EditResult.FromString(data)
    except DecodeError as error:
        raise ValueError(f"it is not the result of an edit: {error}") from error
    before = _decoded(message.before)
    is_whole = len(before) == message.changed
    return EditResult(
        message.id,
        message.refused,
        message.changed,
        message.unchanged,
        message.epoch,
        before if is_whole else None,
        message.before_bytes,
    )


def make_edit(state: KeyedState, edit: Edit, epoch: int, declared: Sequence[DeclaredState] | None) -> EditResult:
    """Make an edit, or refuse it. `declared`: the states of the function that runs; None if none does, and states that
    the lane does not have yet are added."""
    numbers: list[int] = []
    for wanted in edit.states:
        number = _number(state, wanted, declared)
        if isinstance(number, str):
            return EditResult(edit.id, number, epoch=epoch)
        numbers.append(number)
    changes = list(_changes(state, edit, numbers))
    before = [state.entry(one.state, one.key, one.item) for one in changes]
    different = [index for index, one in enumerate(changes) if before[index] != one.stored]
    if not different:
        return EditResult(edit.id, unchanged=len(changes), epoch=epoch)
    refused = _unexpected(state, edit, numbers) or state.refusal_of([changes[index] for index in different])
    if refused:
        return EditResult(edit.id, refused, epoch=epoch)
    for index in different:
        state.write(changes[index])
    were = [edit.entries[index]._replace(stored=before[index]) for index in different]
    size = sum(size_of(one.key, one.item, one.stored) for one in were)
    return EditResult(
        edit.id,
        changed=len(different),
        unchanged=len(changes) - len(different),
        epoch=epoch,
        before=were if size <= BEFORE_BYTES_MAX else None,
        before_bytes=size,
    )


def _number(state: KeyedState, wanted: state_pb2.StoredState, declared: Sequence[DeclaredState] | None) -> int | str:
    """The number of a state in the lane; or why the lane cannot have entries of it."""
    fits = [one for one in state.stored if one.name == wanted.name]
    if fits and (fits[0].kind, fits[0].codec, fits[0].item_codec) != (wanted.kind, wanted.codec, wanted.item_codec):
        return f"`{wanted.name}` is another kind of state in the lane, or encoded in another way"
    if declared is None:
        return state.adopt(wanted)
    runs = next((one for one in declared if one.name == wanted.name), None)
    if runs is None or not fits:
        return f"the function that runs does not declare `{wanted.name}`"
    if wanted.version and not runs.oldest_version <= wanted.oldest_version <= wanted.version <= runs.version:
        return (
            f"entries of `{wanted.name}` are of version {wanted.oldest_version} to {wanted.version}, and the function "
            f"that runs reads {runs.oldest_version} to {runs.version}"
        )
    return list(state.stored).index(fits[0])


def _changes(state: KeyedState, edit: Edit, numbers: Sequence[int]) -> Iterator[EntryChange]:
    for key, index, item, wanted in edit.entries:
        number, stored = numbers[index], wanted
        if edit.keeps_expiry and wanted is not None and (before := state.entry(number, key, item)) is not None:
            value, _, version = parts_of(wanted)
            stored = stored_of(value, expires_us_of(before), version)
        yield EntryChange(key, number, item, stored)


def _unexpected(state: KeyedState, edit: Edit, numbers: Sequence[int]) -> str | None:
    for key, index, item, stored in edit.expected:
        found = state.entry(numbers[index], key, item)
        if (found is None) != (stored is None):
            return f"there is {'no' if found is None else 'an'} entry of `{edit.states[index].name}`"
        if found is not None and stored is not None and parts_of(found)[0] != parts_of(stored)[0]:
            return f"the entry of `{edit.states[index].name}` has another value now"
    return None


def _encoded(entries: Sequence[EntryChange]) -> bytes:
    """These entries as one step; empty for none."""
    columns = Entries()
    for row in entries:
        add_row(columns, *row)
    steps = list(encode_steps(columns))
    assert len(steps) <= 1, "they have no more bytes than a step"
    return steps[0] if steps else b""


def _decoded(data: bytes) -> Sequence[EntryChange]:
    return [EntryChange(*row) for row in rows_of(decode_step(data).entries)] if data else []
