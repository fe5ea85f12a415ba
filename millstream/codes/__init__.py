"""The catalogue of error codes, `MS-…`: one for each cause that has a remedy of its own.

`docs/errors.md` and `millstream explain` are generated from it. Above it: all our errors, each of which has a code, and
every problem with a pipeline file. Below it: nothing. The number of a removed code is never used again.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType

from millstream.codes.code import PREFIX, Code, Family
from millstream.codes.damage import *  # noqa: F403  # each module is a part of one list of names
from millstream.codes.defects import *  # noqa: F403
from millstream.codes.functions import *  # noqa: F403
from millstream.codes.infrastructure import *  # noqa: F403
from millstream.codes.owners import *  # noqa: F403
from millstream.codes.pipeline_file import *  # noqa: F403
from millstream.codes.user import *  # noqa: F403

NAMED = MappingProxyType({name: value for name, value in globals().items() if isinstance(value, Code)})
"""All codes, by their names in this package."""
CODES = MappingProxyType({code.number: code for code in sorted(NAMED.values(), key=lambda code: code.number)})
"""All codes by number, in order."""


def find(text: str) -> Code | None:
    """Finds the code for `MS-2101`, `ms-2101` or `2101`; None if there is no such code."""
    number = text.strip().upper().removeprefix(PREFIX)
    return CODES.get(int(number)) if number.isascii() and number.isdigit() else None


_FAMILIES = (
    Family(21, "Commands and options"),
    Family(22, "The pipeline file"),
    Family(23, "A pipeline and its stored data"),
    Family(24, "Access to the broker"),
    Family(25, "Sources, sinks and records"),
    Family(26, "Functions, queries and settings of Spark"),
    Family(30, "A function failed"),
    Family(31, "A function cannot be run"),
    Family(40, "Files, disks, processes and ports"),
    Family(41, "The broker"),
    Family(42, "Spark and Java"),
    Family(43, "What sources and sinks talk to"),
    Family(50, "Damage in the broker's store"),
    Family(51, "Damage in the log of a reduce"),
    Family(52, "Files and positions of sources and sinks"),
    Family(53, "Files of the data directory"),
    Family(60, "Another process has taken over"),
    Family(70, "Defects"),
)


def families() -> Mapping[Family, Sequence[Code]]:
    """All codes by family, in order."""
    found: dict[Family, list[Code]] = {family: [] for family in _FAMILIES}
    by_number = {family.number: family for family in _FAMILIES}
    for number, code in CODES.items():
        found[by_number[number // 100]].append(code)
    return found
