"""What an error code is. Below it: nothing."""

from __future__ import annotations

from dataclasses import dataclass

PREFIX = "MS-"
_EXIT_CODES = {2: 2, 3: 3, 4: 4, 5: 5, 6: 6, 7: 70}


@dataclass(frozen=True, slots=True)
class Code:
    """A kind of failure that has one remedy: what its page says, for the one who looks it up."""

    number: int
    """Four digits. The first is the class: 2 the user, 3 a function of the user's, 4 the machine or a server, 5 damage,
    6 another owner, 7 a defect. A number never gets another meaning."""
    title: str
    """What happened, as a heading."""
    happened: str
    """What happened, and how that comes about."""
    data: str
    """What it means for the data. It promises nothing that Millstream does not know when it reports the error."""
    do: str
    """What to do."""

    @property
    def id(self) -> str:
        """As it is printed: `MS-2101`."""
        return f"{PREFIX}{self.number}"

    @property
    def exit_code(self) -> int:
        """Of a process that ends with such an error."""
        return _EXIT_CODES[self.number // 1000]

    def __str__(self) -> str:
        return self.id


@dataclass(frozen=True, slots=True)
class Family:
    """Codes about the same thing, as pages and lists show them together."""

    number: int
    """The first two digits of its codes."""
    title: str

    @property
    def exit_code(self) -> int:
        """Of a process that ends with an error of the family."""
        return _EXIT_CODES[self.number // 10]
