"""What a buffer holds, as a frame that can be used: checked before a record of it is.

A frame that was committed and cannot be read is damage, whichever writer let it in: it is reported with its place and
its writer, and `millstream repair` steps over it.

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
    """The frame, checked. Raises `ValueError` that says why it cannot be used."""
    if stored.witness is None:
        raise ValueError("its name cannot be read, so no lane has written it")
    try:
        frame = Frame.decode(stored.data)
    except DamageError as error:
        raise ValueError(str(error)) from error
    frame.check()
    return frame


def decoded(writer: str, buffer: BufferId, stored: StoredFrame) -> Frame:
    """The frame, checked. `writer`: the vertex whose ledger holds the buffer. Raises `DamageError` when it cannot be
    used."""
    try:
        return readable(stored)
    except ValueError as error:
        raise DamageError(
            codes.FRAME_UNREADABLE,
            f"buffer {buffer}: {name_for_people(writer, stored)} at sequence {stored.sequence} cannot be used: "
            f"{error}. No record of it was used. {REPAIR}",
        ) from error


def name_for_people(writer: str, stored: StoredFrame) -> str:
    """Which frame it is, and who wrote it."""
    name = stored.witness
    return f"frame {name.number} of lane {writer}/{name.lane}" if name is not None else f"a message to vertex {writer}"
