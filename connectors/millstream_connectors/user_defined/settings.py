"""The settings of the `udsource` and `udsink`, as pipeline files have them. Pure."""

from __future__ import annotations

from typing import Annotated

from millstream.limits import IDS_MAX
from millstream.spec.connectors import IdsCount
from millstream.spec.programs import Program
from millstream.spec.protocols import FunctionKind
from millstream.spec.rules import Strict
from millstream.spec.values import PositiveDuration, field


class UserSource(Program):
    """A source written by the user."""

    noun = "a udsource"
    function = FunctionKind.SOURCE

    id_ttl_s: Annotated[PositiveDuration, Strict(ge=1)] = field(default=24 * 3600.0, alias="idTtl")
    """How long the id of a record is remembered, if the source gives ids. Duration of at least 1s, default 24h."""
    ids_max: IdsCount = field(default=IDS_MAX, alias="idsMax")
    """Maximum number of record ids that are remembered, over all partitions; beyond it a lane waits until its oldest
    ids expire."""


class UserSink(Program):
    """A sink written by the user."""

    noun = "a udsink"
    function = FunctionKind.SINK
