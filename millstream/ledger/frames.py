"""Decodes the frames of a buffer, and checks each one before any of its records is used.

A committed frame that cannot be read is damage, whichever writer stored it. The error names its position and its
writer, and `millstream repair` skips it.

Above it: code that reads buffers. Below it: the codec of frames.
"""

from __future__ import annotations

from millstream import codes
from millstream.errors import REPAIR, DamageError
from millstream.frame import Frame, join_frames
from millstream.ledger.packs import frames_in
from millstream.ledger.protocol import StoredFrame
from millstream.record import BufferId


def readable(stored: StoredFrame) -> Frame:
    """The checked frame; those of a pack are joined. Raises a `ValueError` that says why it cannot be used."""
    return join_frames(_parts(stored))


def decoded(writer: str, buffer: BufferId, stored: StoredFrame) -> Frame:
    """The checked frame; those of a pack are joined. `writer`: the vertex whose ledger holds the buffer. Raises
    `DamageError` if the frame cannot be used."""
    return join_frames(decoded_parts(writer, buffer, stored))


def decoded_parts(writer: str, buffer: BufferId, stored: StoredFrame) -> list[Frame]:
    """The checked frame, or those of a pack, in order. `writer` and errors: as for `decoded`."""
    try:
        return _parts(stored)
    except ValueError as error:
        raise DamageError(
            codes.FRAME_UNREADABLE,
            f"buffer {buffer}: {name_for_people(writer, stored)} at sequence {stored.sequence} cannot be used: "
            f"{error}. No record of it was used. {REPAIR}",
        ) from error


def _parts(stored: StoredFrame) -> list[Frame]:
    if stored.witness is None:
        raise ValueError("its name cannot be read, so no lane has written it")
    try:
        frames = frames_in(stored.data)
    except DamageError as error:
        raise ValueError(str(error)) from error
    for frame in frames:
        frame.check()
    return frames


def name_for_people(writer: str, stored: StoredFrame) -> str:
    """Names the frame and its writer in a message."""
    name = stored.witness
    return f"frame {name.number} of lane {writer}/{name.lane}" if name is not None else f"a message to vertex {writer}"
