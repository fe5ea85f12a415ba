"""What an error code is. Below it: nothing."""

from __future__ import annotations

from dataclasses import dataclass

PREFIX = "MS-"
_EXIT_CODES = {2: 2, 3: 3, 4: 4, 5: 5, 6: 6, 7: 70}


@dataclass(frozen=True, slots=True)
class Code:
    """A kind of failure with one remedy, and the text of its page."""

    number: int
    """Four digits. The first is the class: 2 the user, 3 a user's function, 4 the machine or a server, 5 damage,
    6 another owner, 7 a defect. The meaning of a number never changes."""
    title: str
    """What happened, as a heading."""
    happened: str
    """What happened, and how it can happen."""
    data: str
    """What the error means for the data. The text promises only what Millstream knows when it reports the error."""
    do: str
    """What to do."""

    @property
    def id(self) -> str:
        """The printed form: `MS-2101`."""
        return f"{PREFIX}{self.number}"

    @property
    def exit_code(self) -> int:
        """Exit code of a process that ends with this error."""
        return _EXIT_CODES[self.number // 1000]

    def __str__(self) -> str:
        return self.id


@dataclass(frozen=True, slots=True)
class Family:
    """Codes about the same subject, which pages and lists show together."""

    number: int
    """The first two digits of its codes."""
    title: str

    @property
    def exit_code(self) -> int:
        """Exit code of a process that ends with an error of the family."""
        return _EXIT_CODES[self.number // 10]
