"""Problems of a pipeline file, and notes on it."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from millstream import codes
from millstream.codes.code import Code
from millstream.errors import UserError

Path = tuple[str | int, ...]
"""The way to a value in the file: member names and list indexes."""


PROBLEMS_SHOWN_MAX = 50
"""Number of problems that are printed at once: more of them have one cause, or are read with `validate -o json`."""
_TOLD = ("file", "line", "column", "path", "what", "expected")
_STEPS_SHOWN_MAX = 16
"""Deeper than any field. An alias that contains itself is infinitely deep."""


def path_text(path: Path) -> str:
    """A path as users read it: `spec.vertices[2].udf`; of a very long path, its beginning."""
    text = ""
    for step in path[:_STEPS_SHOWN_MAX]:
        text += f"[{step}]" if isinstance(step, int) else f".{step}"
    return text.removeprefix(".") + ("..." if len(path) > _STEPS_SHOWN_MAX else "")


@dataclass(frozen=True, slots=True)
class Problem:
    """One problem."""

    code: Code
    """The code, which users can look up."""
    file: str
    """The pipeline file, as named by the user; empty for a pipeline without one."""
    line: int
    """Line in the file, from 1; 0 when the problem is not at a place in it."""
    column: int
    """Column, from 1; 0 when the problem is not at a place in it."""
    path: str
    """The place in the pipeline, such as `spec.vertices[2].udf`; empty for the whole file."""
    what: str
    """A description of the problem."""
    expected: str
    """The expected value, or what to do."""
    detail: str = ""
    """Additional lines, such as a traceback of the user's code."""

    def __str__(self) -> str:
        place = ":".join(str(part) for part in (self.file, self.line, self.column) if part)
        head = ": ".join(part for part in (place, self.path, self.what) if part)
        remark = self.expected if self.expected.startswith("did you mean ") else f"expected: {self.expected}"
        return f"{head} ({remark}) [{self.code}]"

    def as_json(self) -> dict[str, Any]:
        """Its fields, with the code as it is printed."""
        told = {"code": self.code.id} | {name: getattr(self, name) for name in _TOLD}
        return told | ({"detail": self.detail} if self.detail else {})


@dataclass(frozen=True, slots=True)
class Note:
    """Something that is accepted but has no effect here, or that the user should know."""

    file: str
    """As in `Problem`."""
    line: int
    """As in `Problem`."""
    column: int
    """As in `Problem`."""
    path: str
    """As in `Problem`."""
    what: str
    """The text of the note."""

    def __str__(self) -> str:
        place = ":".join(str(part) for part in (self.file, self.line, self.column) if part)
        return ": ".join(part for part in (place, self.path, self.what) if part)


@dataclass(frozen=True, slots=True)
class Finding:
    """A problem without file and line."""

    code: Code
    """The code, which users can look up."""
    path: Path
    """The place in the pipeline."""
    what: str
    """A description of the problem."""
    expected: str
    """The expected value."""
    detail: str = ""
    """As in `Problem`."""


def problem_lines(problems: Sequence[Problem]) -> Iterator[str]:
    """The lines to print."""
    for problem in problems[:PROBLEMS_SHOWN_MAX]:
        yield str(problem)
        yield from (f"    {line}" for line in problem.detail.splitlines())
    if len(problems) > PROBLEMS_SHOWN_MAX:
        yield f"... and {len(problems) - PROBLEMS_SHOWN_MAX} more problems (`millstream validate -o json` lists all)"


class SpecError(UserError):
    """A pipeline that cannot be run as written, with all its problems."""

    def __init__(self, problems: Sequence[Problem]) -> None:
        self.problems = tuple(problems)
        """Every problem, in the order of the file."""
        found = {problem.code for problem in self.problems}
        code = found.pop() if len(found) == 1 else codes.PIPELINE_INVALID
        super().__init__(code, "\n".join(problem_lines(self.problems)))

    @property
    def shown(self) -> str:
        """Each problem has its own code in its line."""
        return str(self)
