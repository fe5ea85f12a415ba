"""What the text of a query shows of what it reads and calls, without a parser: for Spark Connect, which shows no plans.

    text ─► tokens, as Spark's lexer divides it ─► each name before `(` is a known function, each relation is known

It is stricter than Spark's grammar: what it cannot place is refused, whatever it means. So a query of a newer Spark, or
a construct that Spark would read in two ways, is refused rather than misread. `safety` reads Spark's own plan instead,
where there is one.

A call is a name before a bracket: Spark has no other, except for a few without arguments that compute, `IDENTIFIER`,
which is refused, and programs (`USING` before a text), which are refused. A relation follows FROM, JOIN, TABLE or a
comma in the list after FROM.

Above it: `safety`. Below it: lists of functions. It knows nothing of Spark sessions.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator
from dataclasses import dataclass, field
from enum import Enum

from millstream.nearest import did_you_mean
from millstream.spec.sql import UNSAFE_FUNCTIONS
from millstream_reduce.spark.functions import ALLOWED_FUNCTIONS, ALLOWED_TABLE_FUNCTIONS

_TOKEN = re.compile(
    r"""
      (?P<space> [ \r\n\t]+ | --[^\r\n]*)
    | (?P<comment> /\*(?!\+) .*? (?:\*/|\Z))
    | (?P<text> [rR]'[^']*' | [rR]"[^"]*" | '(?:[^'\\]|\\.|'')*' )
    | (?P<double> "(?:[^"\\]|\\.|"")*" )
    | (?P<quoted> `(?:[^`]|``)*` )
    | (?P<name> [A-Za-z0-9_]+ )
    | (?P<sign> /\*\+ | \*/ | [][(){}.,:<>=!+\-*/%&|^~?@#\\] )
    """,
    re.VERBOSE | re.DOTALL,
)
_BEFORE_BRACKETS = frozenset({
    "ALL", "AND", "ANY", "AS", "ASC", "BETWEEN", "BY", "CASE", "CHARACTER", "CUBE", "DEC", "DESC", "DISTINCT",
    "ELSE", "ESCAPE", "EXCEPT", "EXISTS", "FILTER", "FOLLOWING", "FOR", "FROM", "GROUP", "HAVING", "ILIKE", "IN",
    "INTERSECT", "INTERVAL", "JOIN", "LATERAL", "LIKE", "LIMIT", "MINUS", "NOT", "NUMERIC", "OFFSET", "ON", "OR",
    "OVER", "PIVOT", "PRECEDING", "REGEXP", "RLIKE", "ROLLUP", "SELECT", "SETS", "SOME", "TABLE", "TABLESAMPLE",
    "THEN", "UNION", "UNPIVOT", "USING", "VALUES", "VARCHAR", "WHEN", "WHERE", "WITH",
})  # fmt: skip
"""Words of the grammar that a bracket may follow without a call."""
_CALLS_OF_THE_GRAMMAR = frozenset({
    "any", "ceil", "date_add", "dateadd", "date_diff", "datediff", "extract", "first", "floor", "last", "overlay",
    "percentile_cont", "percentile_disc", "position", "struct", "substr", "substring", "timestampadd",
    "timestampdiff", "timediff", "trim", "try_cast",
})  # fmt: skip
"""Functions that Spark's grammar knows, and that its registry may lack. All of them compute."""
_BEGIN_QUERY = frozenset({"SELECT", "VALUES", "WITH"})
_JOIN_QUERIES = frozenset({"UNION", "EXCEPT", "INTERSECT", "MINUS", "ALL", "DISTINCT"})
_WITH_FROM_IN_BRACKETS = frozenset({"EXTRACT", "TRIM", "SUBSTR", "SUBSTRING", "OVERLAY"})
_LISTS = frozenset({"GROUP", "ORDER", "SORT", "CLUSTER", "DISTRIBUTE", "PARTITION"})


_CALLABLE = ALLOWED_FUNCTIONS | ALLOWED_TABLE_FUNCTIONS | _CALLS_OF_THE_GRAMMAR


class UnreadableError(Exception):
    """The text cannot be relied on, or does more than compute over the window. The message says where and what."""


class _Kind(Enum):
    """Named by the groups of `_TOKEN`."""

    WORD = "name"
    """A name without quotes, or a word of the grammar."""
    QUOTED = "quoted"
    """A name in backquotes."""
    DOUBLE = "double"
    """A text, or a name, as the server is set up."""
    TEXT = "text"
    SIGN = "sign"
    """Anything else."""


@dataclass(frozen=True, slots=True)
class _Token:
    kind: _Kind
    written: str
    at: int
    """Index in the query."""

    @property
    def word(self) -> str:
        """As words of the grammar are written; empty for anything else."""
        return self.written.upper() if self.kind is _Kind.WORD else ""

    @property
    def name(self) -> str:
        """What it may name, in lower case; empty if it cannot be a name."""
        match self.kind:
            case _Kind.WORD:
                return "" if self.written.isdecimal() else self.written.lower()
            case _Kind.QUOTED:
                return self.written[1:-1].replace("``", "`").lower()
            case _Kind.DOUBLE:
                return self.written[1:-1].lower()
        return ""


_END = _Token(_Kind.SIGN, "", -1)


@dataclass(slots=True)
class _Bracket:
    """What is between two brackets, or the whole query."""

    before: str
    """The word before the bracket."""
    first: str
    """The first word in it."""
    known: set[str] = field(default_factory=set)
    """Names that WITH gives in it."""
    has_select: bool = False
    in_from: bool = False
    """Whether a comma separates relations."""


def check_query_text(query: str, table: str, functions_of_users: Collection[str] = ()) -> None:
    """Raise `UnreadableError` unless the query reads `table` alone and calls known functions alone.

    `functions_of_users`: names of functions that the server has beside those of Spark, in lower case.
    """
    _Check(query, table, functions_of_users).run()


class _Check:
    def __init__(self, query: str, table: str, functions_of_users: Collection[str]) -> None:
        self._query = query
        self._tokens = list(_without_hints(query))
        self._of_users = functions_of_users
        self._closing = self._matched()
        self._open = [_Bracket("", self._token(0).word, {table.lower()})]
        self._given: dict[int, str] = {}
        """Names of WITH, by the index of the bracket that closes their query."""
        self._heads: set[int] = set()
        """Indexes of these names."""

    def run(self) -> None:
        if self._token(0).word not in _BEGIN_QUERY and self._token(0).written != "(":
            raise UnreadableError("it is not a query: write one SELECT")
        for at, token in enumerate(self._tokens):
            self._look(at, token)

    def _look(self, at: int, token: _Token) -> None:
        inside = self._open[-1]
        match token.written:
            case "(":
                self._check_call(at)
                self._open.append(_Bracket(self._token(at - 1).word, self._token(at + 1).word))
                return
            case ")":
                self._open.pop()
                if at in self._given:
                    self._open[-1].known.add(self._given[at])
                return
            case ",":
                if inside.in_from and not self._is_named_window(at + 1):
                    self._check_relation(at + 1)
                return
        before = self._token(at - 1).word
        match token.word:
            case "SELECT":
                if inside.in_from and before not in _JOIN_QUERIES:
                    self._refuse(at, "SELECT follows FROM")
                inside.has_select, inside.in_from = True, False
            case "FROM":
                self._look_at_from(at, inside)
            case "BY" if before in _LISTS:
                inside.in_from = False
            case "VIEW" if before == "LATERAL":
                inside.in_from = False
            case "JOIN" | "TABLE":
                self._check_relation(at + 1)
            case "WITH":
                self._look_at_with(at)
            case "USING" if self._token(at + 1).kind in (_Kind.TEXT, _Kind.DOUBLE):
                self._refuse(at, "it runs an external program")
            case "IDENTIFIER" if self._token(at + 1).written == "(":
                self._refuse(at, "it uses IDENTIFIER to compose a name, so it is unknown what it refers to")

    def _look_at_from(self, at: int, inside: _Bracket) -> None:
        words = [self._token(at - back).word for back in (1, 2, 3)]
        if words[0] == "DISTINCT" and (words[1] == "IS" or words[1:] == ["NOT", "IS"]):
            return
        if inside.has_select:
            inside.in_from = True
            self._check_relation(at + 1)
        elif inside.before not in _WITH_FROM_IN_BRACKETS or inside.first in ("WITH", "FROM"):
            self._refuse(at, "FROM precedes SELECT")

    def _look_at_with(self, at: int) -> None:
        """Notes the names of a list of queries, which what follows each of them may read."""
        at += 2 if self._token(at + 1).word == "RECURSIVE" else 1
        recursive = self._token(at - 1).word == "RECURSIVE"
        while name := self._token(at).name:
            head, at = at, at + 1
            columns = self._token(at).written == "("
            at = self._closing.get(at, at) + 1 if columns else at
            if self._token(at).word == "MAX":
                at += 4
            if self._token(at).word != "AS" or self._token(at + 1).written != "(":
                return
            if columns:
                self._heads.add(head)
            end = self._closing[at + 1]
            if recursive:
                self._open[-1].known.add(name)
            self._given[end] = name
            at = end + 2
            if self._token(at - 1).written != ",":
                return

    def _is_named_window(self, at: int) -> bool:
        """Whether `name AS (` is here, a window of a list of windows: a relation's alias is a name."""
        return bool(self._token(at).name) and [self._token(at + 1).word, self._token(at + 2).written] == ["AS", "("]

    def _check_relation(self, at: int) -> None:
        """Checks what is read here."""
        while self._token(at).word == "LATERAL" or self._token(at).written == "(":
            opening = self._token(at).written == "("
            at += 1
            if opening and self._token(at).word in _BEGIN_QUERY:
                return
        token, after = self._token(at), self._token(at + 1)
        if token.word == "VALUES" and (after.written == "(" or after.kind is _Kind.TEXT or after.written.isdecimal()):
            return
        if not token.name:
            if token.kind is _Kind.SIGN:
                self._refuse(at, "it is unknown what it reads")
            return
        if after.written == "(":
            if token.name not in ALLOWED_TABLE_FUNCTIONS:
                self._refuse(at, f"it calls `{token.name}`, which may read more than its window")
        elif after.written == "." or not any(token.name in bracket.known for bracket in self._open):
            end = at + 1
            while self._token(end).written == ".":
                end += 2
            read = ".".join(part.name for part in self._tokens[at:end:2])
            self._refuse(at, f"it reads `{read}`: a query of a reduce reads the records of its window and nothing else")

    def _check_call(self, at: int) -> None:
        """Checks the name before a bracket."""
        token = self._token(at - 1)
        if not token.name:
            return
        place, start = list[str](), at - 1
        while self._token(start - 1).written == ".":
            start -= 2
            place.insert(0, self._token(start).name)
        name = token.name
        if place not in ([], ["builtin"], ["system", "builtin"]):
            self._refuse(start, f"it calls `{'.'.join([*place, name])}`, which is not one of Spark's functions")
        if name in UNSAFE_FUNCTIONS:
            self._refuse(start, f"it calls `{name}`, {UNSAFE_FUNCTIONS[name]}")
        if name in _CALLABLE:
            return
        if not place and (at - 1 in self._heads or self._names_columns(at)):
            return
        if token.word not in _BEFORE_BRACKETS or place or name in self._of_users:
            self._refuse(
                start,
                f"it calls `{name}`, which this version of Millstream does not know: it may do more than compute"
                f"{did_you_mean(name, sorted(_CALLABLE))}",
            )

    def _names_columns(self, at: int) -> bool:
        """Whether the brackets hold names for the columns of a relation, after its alias: `... AS t(a, b)`."""
        before = self._token(at - 2)
        inside = self._tokens[at + 1 : self._closing[at]]
        names = all(one.name if index % 2 == 0 else one.written == "," for index, one in enumerate(inside))
        return names and len(inside) % 2 == 1 and (before.word == "AS" or before.written == ")")

    def _matched(self) -> dict[int, int]:
        """The index of the bracket that closes each one."""
        closing, waiting = dict[int, int](), list[int]()
        for at, token in enumerate(self._tokens):
            if token.written == "(":
                waiting.append(at)
            elif token.written == ")":
                if not waiting:
                    self._refuse(at, "a bracket closes that none opens")
                closing[waiting.pop()] = at
        if waiting:
            self._refuse(waiting[-1], "a bracket is not closed")
        return closing

    def _token(self, at: int) -> _Token:
        return self._tokens[at] if 0 <= at < len(self._tokens) else _END

    def _refuse(self, at: int, what: str) -> None:
        token = self._token(at)
        raise UnreadableError(f"{_place(self._query, token.at if token is not _END else len(self._query))}: {what}")


def _without_hints(query: str) -> Iterator[_Token]:
    """The tokens of a query, of each hint only the first: what is in a hint is never computed."""
    hint: _Token | None = None
    for token in _tokens(query):
        if hint is None:
            yield token
        if token.written == "/*+":
            hint = token
        elif token.written == "*/":
            hint = None
    if hint is not None:
        raise UnreadableError(f"{_place(query, hint.at)}: a hint does not end")


def _tokens(query: str) -> Iterator[_Token]:
    """The tokens of a query. Raises `UnreadableError` where Spark's lexer may divide it in another way."""
    at = 0
    while at < len(query):
        found = _TOKEN.match(query, at)
        if found is None:
            raise UnreadableError(
                f"{_place(query, at)}: `{query[at]}` cannot stand outside of texts and names in backquotes"
            )
        written, kind = found[0], found.lastgroup
        if kind == "comment" and (not written.endswith("*/") or len(written) < 4 or "/*" in written[2:]):
            raise UnreadableError(f"{_place(query, at)}: a comment in a comment, or one that does not end")
        if kind == "space" and written.startswith("--") and written.endswith("\\"):
            raise UnreadableError(f"{_place(query, at)}: a comment ends with a backslash")
        if query.startswith("://", at):
            # Spark takes it with all that follows as one name.
            raise UnreadableError(f"{_place(query, at)}: `://` cannot stand outside of texts and names in backquotes")
        if kind not in ("space", "comment"):
            yield _Token(_Kind(kind), written, at)
        at = found.end()


def _place(query: str, at: int) -> str:
    line = query.count("\n", 0, at) + 1
    return f"line {line}, column {at - query.rfind(chr(10), 0, at)}"
