"""The words that the project agreed not to use, and what to write instead: for pages, messages, help and comments.

`faults_of(path, text)` looks at one committed file. In pages and drawings it reads the prose; in programs it reads
comments, docstrings and other literals, never names. Code in backticks, code blocks and links are left out everywhere.
`python tools/english.py [FILE ...]` prints one line per fault; `tests/unit/test_english.py` runs it over everything.
"""

from __future__ import annotations

import io
import re
import sys
import tokenize
from collections.abc import Callable, Iterator
from pathlib import Path, PurePosixPath
from typing import NamedTuple

REPOSITORY = Path(__file__).resolve().parent.parent
if __name__ == "__main__":
    sys.path.insert(0, str(REPOSITORY))

from tools.style import is_generated, texts  # noqa: E402


class Rule(NamedTuple):
    """Words that we do not use, with an example of each that the tests hold the pattern to."""

    avoid: str
    """As CONTRIBUTING.md shows it."""
    near: tuple[str, ...]
    """Every match has one of these in it, in small letters. To look for them first is fast."""
    pattern: re.Pattern[str]
    write: str
    """What to write instead."""
    before: str
    after: str


def _words(pattern: str) -> re.Pattern[str]:
    """A space stands for any number: a phrase may run over the end of a line."""
    return re.compile(rf"\b(?:{pattern})\b".replace(" ", " +"), re.IGNORECASE)


RULES = (
    Rule(
        "nobody, somebody, anybody, whoever",
        ("body", "hoever", "homever", "hosoever"),
        _words("nobody(?:'s)?|somebody(?:'s)?|anybody(?:'s)?|whoever|whomever|whosoever"),
        "the process, user or caller that is meant; `no process`, `another user`",
        "Whoever takes the lane over writes the mark.",
        "The process that takes the lane over writes the mark.",
    ),
    Rule(
        "is told, be told",
        ("told",),
        _words("(?:is|are|was|were|be|been|being) told(?! apart)"),
        "receives, gets, is given; of facts: is reported, is known",
        "A sink is told the id of each record.",
        "A sink gets the id of each record.",
    ),
    Rule(
        "is no X",
        ("no ",),
        # `there is no X` is good English, and so is `it is no longer X`.
        re.compile(
            r"(?<!there )(?<!there's )\b(?:is|are|was|were) +no +"
            r"(?!longer\b|more\b|less\b|fewer\b|later\b|earlier\b|greater\b|larger\b|smaller\b|higher\b|lower\b|one\b)",
            re.IGNORECASE,
        ),
        "is not a X",
        "The value is no JSON, and the row is no object.",
        "The value is not JSON, and the row is not an object.",
    ),
    Rule(
        "for ever, for good",
        ("ever", "good"),
        _words("for ever|for good"),
        "forever, permanently, finally",
        "The file is given up for good.",
        "The file is given up permanently.",
    ),
    Rule(
        "can be had",
        ("had",),
        _words("(?:be|is|are) had(?: back)?"),
        "is available, can be recovered",
        "What cannot be had back is counted.",
        "What cannot be recovered is counted.",
    ),
    Rule(
        "in vain",
        ("vain",),
        _words("in vain"),
        "without effect, without success",
        "It asked three times in vain.",
        "It asked three times without success.",
    ),
    Rule(
        "anew",
        ("anew",),
        _words("anew"),
        "again; rebuild, recreate, regenerate",
        "The log is made anew from its input.",
        "The log is rebuilt from its input.",
    ),
    Rule(
        "mend",
        ("mend",),
        _words("mend(?:s|ed|ing)?|unmended"),
        "fix, repair",
        "Mend the function and run it again.",
        "Fix the function and run it again.",
    ),
    Rule(
        "so is, so are (for `too`)",
        (" so ",),
        re.compile(r"[,;:] +so +(?:is|are|was|were|does|do|has|have|can|will) +(?!what\b)", re.IGNORECASE),
        "a sentence with its own subject and verb; `too`, `also`",
        "A lost log stops the lane, so is a damaged one.",
        "A lost log stops the lane. A damaged one does, too.",
    ),
    Rule(
        "is there twice",
        ("twice",),
        _words("(?:is|are|was|were|stands?) there twice"),
        "duplicate, appears twice",
        "The vertex is there twice.",
        "The vertex appears twice.",
    ),
    Rule(
        "over restarts, over crashes",
        ("restart", "crash"),
        _words("over (?:restarts|crashes|a restart|a crash)"),
        "across restarts",
        "The count is exact over restarts.",
        "The count is exact across restarts.",
    ),
    Rule(
        "hereby, thereby, therein and their kind",
        ("hereby", "herein", "hereof", "hereupon", "herewith", "hereto", "herefrom", "ither", "hence", "lest"),
        _words("(?:here|there|where)(?:by|in|of|upon|with|to|from)|hitherto|thither|hither|whence|hence|lest"),
        "so, in it, of it, with it",
        "The mark and all that lies therein.",
        "The mark and what is in it.",
    ),
    Rule(
        "as ever, at will",
        ("ever", "will"),
        _words("as ever|at will"),
        "as before, as usual; any number of times",
        "Known ids are answered as ever.",
        "Known ids are answered as before.",
    ),
    Rule(
        "all else",
        ("all",),
        _words("all else"),
        "everything else",
        "All else is ready.",
        "Everything else is ready.",
    ),
    Rule(
        "in silence",
        ("silence",),
        _words("in silence"),
        "silently, without a message",
        "Damage is never skipped in silence.",
        "Damage is never skipped silently.",
    ),
    Rule(
        "put out (for output)",
        ("put",),
        _words("puts? out|putting out"),
        "return, write; a noun: the output",
        "The edges take what a vertex puts out.",
        "The edges take the output of a vertex.",
    ),
    Rule(
        "tell of",
        ("of",),
        _words("tells? of|told of|telling of"),
        "report, publish, announce, count",
        "The server tells of every put.",
        "The server announces every put.",
    ),
    Rule(
        "shall",
        ("shall",),
        _words("shall"),
        "must, will, should",
        "The file shall be empty.",
        "The file must be empty.",
    ),
    Rule(
        "looks whether",
        ("whether",),
        _words("looks? whether|looked whether"),
        "check whether, compare",
        "The reader looks whether the frame is still there.",
        "The reader checks whether the frame is still there.",
    ),
    Rule(
        "go on behind",
        ("behind",),
        _words("go(?:es)? on behind|going on behind"),
        "continue after, resume after",
        "The lane goes on behind its mark.",
        "The lane continues after its mark.",
    ),
    Rule(
        "wake up late",
        ("late",),
        _words("wakes? up late|woken up late"),
        "resume late; a stale process",
        "An owner that wakes up late is fenced.",
        "An owner that resumes late is fenced.",
    ),
    Rule(
        "under way",
        ("under",),
        _words("under way"),
        "in progress, in flight",
        "Several calls are under way.",
        "Several calls are in flight.",
    ),
    Rule(
        "made again (of a thing or a call)",
        ("again",),
        _words("made again"),
        "recreated, rebuilt, repeated",
        "The stream was made again.",
        "The stream was recreated.",
    ),
    Rule(
        "has got",
        ("got",),
        _words("(?:has|have|had) got"),
        "has, has received, has made progress",
        "The window has got two records.",
        "The window has two records.",
    ),
    Rule(
        "for certain, at the most",
        ("certain", "most"),
        re.compile(r"\bfor +certain\b|\bat +the +most(?=[.,:;)])", re.IGNORECASE),
        "certainly, at most",
        "It is late by a second at the most.",
        "It is late by at most a second.",
    ),
    Rule(
        "all the same (for `anyway`)",
        ("same",),
        re.compile(r"\ball +the +same(?=[.,:;)])", re.IGNORECASE),
        "anyway, still",
        "A late record is processed all the same.",
        "A late record is still processed.",
    ),
    Rule(
        "record(s)",
        ("(s)", "(es)"),
        # A call in a quoted line of code, such as `json.loads(s)`, is not a plural.
        re.compile(r"(?<![.\w])(?!type\b|str\b|len\b)[a-z]{2,}\((?:s|es)\)"),
        "the count with its noun: `counted` of `millstream/plurals.py`",
        "The run ended 2 process(es).",
        "The run ended 2 processes.",
    ),
    Rule(
        "stands in, lies in (for `is in`)",
        ("stand", "stood", " lie", " lay"),
        _words(
            "(?:stands?|stood) (?:in(?! for)|on|behind|beside|before|there|at|where)|"
            "(?:lies|lie|lay) (?:in|on|behind|beside|below|there|at|where|before)"
        ),
        "is in, contains, follows, is stored; a noun: the position",
        "What stands in the file lies in the data directory.",
        "The contents of the file are in the data directory.",
    ),
    Rule(
        "in the clear",
        ("clear",),
        _words("in the clear"),
        "unencrypted, in plain text",
        "The password goes to the broker in the clear.",
        "The password goes to the broker unencrypted.",
    ),
    Rule(
        "with commas between",
        ("between",),
        _words("with (?:commas|spaces|a comma|a space) between"),
        "separated by commas",
        "Several names, with commas between them.",
        "Several names, separated by commas.",
    ),
    Rule(
        "is waited for",
        ("waited",),
        _words("(?:is|are|was|were|be|been) waited for"),
        "say who waits: the lane waits for",
        "A server that is away is waited for.",
        "The lane waits for a server that is away.",
    ),
    Rule(
        "for want of",
        ("want",),
        _words("for want of"),
        "for lack of, because there is no",
        "A commit is refused for want of space.",
        "A commit is refused for lack of space.",
    ),
)

LEFT_OUT = frozenset(
    {
        "LICENSE",
        "CONTRIBUTING.md",
        "docs/assets/iframe-worker-shim.js",
        "tools/english.py",
        "tests/unit/test_english.py",
    }
)
"""Texts of others, and these, which quote what they look for."""
_LEFT_OUT_FOLDERS = ("requirements/",)
_HASH_COMMENTS = frozenset({".cfg", ".conf", ".ini", ".sh", ".toml", ".yaml", ".yml", ".in", ""})
_SLASH_COMMENTS = frozenset({".go", ".proto", ".java", ".js", ".mjs", ".rs", ".ts"})
_PROSE = frozenset({".md", ".svg", ".html"})

_FENCED = re.compile(r"^( *)```.*?^\1```", re.MULTILINE | re.DOTALL)
_NOT_PROSE = re.compile(
    r"`[^`\n]*`|\{[^{}\n]*\}|\]\([^)\s]*\)|<(?:style|script)\b.*?</(?:style|script)>|<[^>]*>|\w+://\S+", re.DOTALL
)
_SLASH_COMMENT = re.compile(r'//[^\n]*|/\*.*?\*/|"(?:[^"\\\n]|\\.)*"|`[^`]*`', re.DOTALL)
_LINE_END = re.compile(r"""(?: ["'])?\n[ \t]*(?:#|//|\*|>|f?["'])?[ \t]?""")
_HASH_COMMENT = re.compile(r"(?:^|(?<=\s))#[^\n]*", re.MULTILINE)


def faults_of(path: PurePosixPath, text: str) -> list[str]:
    """One line for each place in which a file uses what we do not; `path` is relative to the repository."""
    if str(path) in LEFT_OUT or str(path).startswith(_LEFT_OUT_FOLDERS) or is_generated(path):
        return []
    flat = _flat(text)
    small = flat.lower()
    rules = [rule for rule in RULES if any(hint in small for hint in rule.near) and rule.pattern.search(flat)]
    if not rules:
        return []
    prose = _flat(_prose_of(path, text))
    found = [(match.start(), match.group().strip(), rule) for rule in rules for match in rule.pattern.finditer(prose)]
    return [
        f"{path}:{text.count(chr(10), 0, offset) + 1}: `{words}`: write {rule.write}"
        for offset, words, rule in sorted(found, key=lambda one: one[0])
    ]


def _flat(text: str) -> str:
    """Line ends as spaces of the same length, with what begins the next line of a comment or of a literal in pieces."""
    return _LINE_END.sub(lambda match: " " * len(match.group()), text)


def _prose_of(path: PurePosixPath, text: str) -> str:
    """The text with everything blanked out that is not prose; every character keeps its place."""
    if path.suffix in _PROSE:
        return _blanked(_NOT_PROSE, _blanked(_FENCED, text))
    if path.suffix in (".py", ".pyi"):
        return _blanked(_NOT_PROSE, _kept(text, _python_spans(text)))
    if path.suffix in _SLASH_COMMENTS:
        return _blanked(_NOT_PROSE, _kept(text, (match.span() for match in _SLASH_COMMENT.finditer(text))))
    if path.suffix in _HASH_COMMENTS:
        return _blanked(_NOT_PROSE, _kept(text, (match.span() for match in _HASH_COMMENT.finditer(text))))
    return _spaces(text)


def _spaces(text: str) -> str:
    return re.sub(r"[^\n]", " ", text)


def _blanked(pattern: re.Pattern[str], text: str) -> str:
    blank: Callable[[re.Match[str]], str] = lambda match: _spaces(match.group())  # noqa: E731
    return pattern.sub(blank, text)


def _kept(text: str, spans: Iterator[tuple[int, int]]) -> str:
    kept, end = [], 0
    for start, stop in spans:
        kept += [_spaces(text[end:start]), text[start:stop]]
        end = stop
    return "".join([*kept, _spaces(text[end:])])


def _python_spans(text: str) -> Iterator[tuple[int, int]]:
    """Comments, docstrings and other literals."""
    starts = [0]
    for line in text.splitlines(keepends=True):
        starts.append(starts[-1] + len(line))
    literal = {tokenize.COMMENT, tokenize.STRING, getattr(tokenize, "FSTRING_MIDDLE", tokenize.STRING)}
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type in literal and not _is_name(token):
            yield starts[token.start[0] - 1] + token.start[1], starts[token.end[0] - 1] + token.end[1]


def _is_name(token: tokenize.TokenInfo) -> bool:
    """A literal of one word: the name of a thing, no text."""
    return token.type == tokenize.STRING and " " not in token.string


def main(names: list[str]) -> int:
    paths = [Path(name).resolve() for name in names] or list(texts())
    faults = [
        fault
        for path in paths
        for fault in faults_of(PurePosixPath(path.relative_to(REPOSITORY)), path.read_text(encoding="utf-8"))
    ]
    print("\n".join(faults) or "nothing found")
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
