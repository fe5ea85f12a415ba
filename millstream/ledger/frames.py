"""Decodes the frames of a buffer, and checks each one before any of its records is used.

A committed frame that cannot be read is damage, whichever writer stored it. The error names its position and its
writer, and `millstream repair` skips it.

Above it: code that reads buffers. Below it: the codec of frames.
"""

from __future__ import annotations

from millstream import codes
from millstream.errors import DamageError
from millstream.frame import Frame
from millstream.ledger.protocol import StoredFrame
from millstream.ledger.witness import REPAIR
from millstream.record import BufferId


def readable(stored: StoredFrame) -> Frame:
    """The checked frame. Raises a `ValueError` that says why it cannot be used."""
    if stored.witness is None:
        raise ValueError("its name cannot be read, so no lane has written it")
    try:
        frame = Frame.decode(stored.data)
    except DamageError as error:
        raise ValueError(str(error)) from error
    frame.check()
    return frame


def decoded(writer: str, buffer: BufferId, stored: StoredFrame) -> Frame:
    """The checked frame. `writer`: the vertex whose ledger holds the buffer. Raises `DamageError` if the frame cannot
    be used."""
    try:
        return readable(stored)
    except ValueError as error:
        raise DamageError(
            codes.FRAME_UNREADABLE,
            f"buffer {buffer}: {name_for_people(writer, stored)} at sequence {stored.sequence} cannot be used: "
            f"{error}. No record of it was used. {REPAIR}",
        ) from error


def name_for_people(writer: str, stored: StoredFrame) -> str:
    """Names the frame and its writer in a message."""
    name = stored.witness
    return f"frame {name.number} of lane {writer}/{name.lane}" if name is not None else f"a message to vertex {writer}"
