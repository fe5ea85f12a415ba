"""The settings of the `udsource` and `udsink`, as pipeline files have them. Pure."""

from __future__ import annotations

from millstream.spec.connectors import RemembersIds
from millstream.spec.programs import Program
from millstream.spec.protocols import FunctionKind


class UserSource(RemembersIds, Program):
    """A source written by the user."""

    noun = "a udsource"
    function = FunctionKind.SOURCE


class UserSink(Program):
    """A sink written by the user."""

    noun = "a udsink"
    function = FunctionKind.SINK
