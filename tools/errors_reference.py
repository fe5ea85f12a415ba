"""Writes the pages about errors, docs/errors.md and docs/troubleshooting.md, from the catalogue of codes.

With --check nothing is written, and the exit code is 1 if a page is not up to date.
"""

import sys
from collections.abc import Iterator
from pathlib import Path

if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from millstream import codes
from millstream.codes.code import Code
from tools.pages import write_or_check

ROOT = Path(__file__).resolve().parent.parent

_MADE = "`python tools/errors_reference.py` generates this page from the codes in `millstream/codes`."

ERRORS = f"""# Error codes

{_MADE}

Every Millstream error has a code. The message contains it, log entries have it in the field `code`, and its meaning is
the same everywhere. `millstream explain MS-2103` prints the section of this page. The first digit says who can act, and
determines the exit code. [troubleshooting.md](troubleshooting.md) lists the codes by symptom.
"""

TROUBLESHOOTING = f"""# When something goes wrong

{_MADE}

1. **Find the code.** A message begins or ends with one, such as `error[MS-4010]`. `millstream explain MS-4010` says
   what it means for your data and what to do; [errors.md](errors.md) has the same text.
2. **Look at the run.** `millstream status` shows the progress of each vertex, which vertices wait, and why the run
   failed. `millstream logs --level warning` shows the messages of its processes. An entry about an error has its code
   in the field `code`.
3. **Look at the account.** At its end, a run prints what became of every record, and `BALANCED` or the difference.
4. **Run it again.** A run that stopped continues from its marks: `millstream run` with the same data directory. Use
   `--fresh` only to start over, because it removes the stored data.

Damaged data (exit code 5) stops a pipeline before any of it is used. Copy the data directory
first, then look at the output of `millstream repair` ([cli.md](cli.md#millstream-repair)).

## Symptoms

Find the exit code or the kind of error, then the closest line.
"""


def errors() -> str:
    """The page with the complete text of each code."""
    sections = [ERRORS]
    for family, members in codes.families().items():
        sections.append(f"## {family.title}\n\nExit code {family.exit_code}.\n")
        sections += ["\n".join(_section(code)) for code in members]
    return "\n".join(sections)


def _section(code: Code) -> Iterator[str]:
    yield f"### {code}"
    yield ""
    yield f"**{code.title}.** {code.happened}"
    yield ""
    yield f"*For the data:* {code.data}"
    yield ""
    yield f"*What to do:* {code.do}"
    yield ""


def troubleshooting() -> str:
    """The page that leads from symptoms to codes."""
    sections = [TROUBLESHOOTING]
    for family, members in codes.families().items():
        lines = [
            f"### {family.title}",
            "",
            f"Exit code {family.exit_code}.",
            "",
            "| what happened | code |",
            "|---|---|",
        ]
        lines += [f"| {code.title} | [{code}](errors.md#{code.id.lower()}) |" for code in members]
        sections.append("\n".join([*lines, ""]))
    return "\n".join(sections)


def contents() -> dict[Path, str]:
    """The expected contents of each file."""
    return {ROOT / "docs" / "errors.md": errors(), ROOT / "docs" / "troubleshooting.md": troubleshooting()}


def main(arguments: list[str] | None = None) -> int:
    """Write or check the pages."""
    return write_or_check(contents(), "tools/errors_reference.py", __doc__ or "", arguments)


if __name__ == "__main__":
    sys.exit(main())
