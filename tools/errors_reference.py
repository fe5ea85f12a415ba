"""Writes the pages about errors, docs/errors.md and docs/troubleshooting.md, from the catalogue of codes.

With --check nothing is written, and the exit code is 1 when a page is not what would be written.
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

_MADE = "Made from the codes in `millstream/codes`; `python tools/errors_reference.py` regenerates it."

ERRORS = f"""# Error codes

{_MADE}

Every error of Millstream's has a code, which is printed with it, stands in the logs as `code`, and means the same
wherever it is met. `millstream explain MS-2103` prints what stands here. The first digit says who can change something,
and gives the exit code. [troubleshooting.md](troubleshooting.md) begins with what you see.
"""

TROUBLESHOOTING = f"""# When something goes wrong

{_MADE}

1. **Look for the code.** A message begins or ends with one, such as `error[MS-4010]`. `millstream explain MS-4010` says
   what it means for your data and what to do, and so does [errors.md](errors.md).
2. **Look at the run.** `millstream status` shows how far each vertex is, who waits, and what the run failed with.
   `millstream logs --level warning` has what its processes said; a line about an error has its code in the field
   `code`.
3. **Look at the account.** At its end a run prints what became of every record, and `BALANCED` or the difference.
4. **Run it again.** A run that stopped goes on from its marks: `millstream run` with the same data directory. Give
   `--fresh` only where you want to start over; it removes what is stored.

Stored data that is damaged (exit code 5) stops a pipeline before anything of it is used. Copy the data directory
first, then see what `millstream repair` says ([cli.md](cli.md#millstream-repair)).

## What you see

Find the exit code or the kind of error, then what comes nearest.
"""


def errors() -> str:
    """The page with all there is to say of each code."""
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
    """The page that leads from what one sees to a code."""
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
    """What each file should hold."""
    return {ROOT / "docs" / "errors.md": errors(), ROOT / "docs" / "troubleshooting.md": troubleshooting()}


def main(arguments: list[str] | None = None) -> int:
    """Write or check the pages."""
    return write_or_check(contents(), "tools/errors_reference.py", __doc__ or "", arguments)


if __name__ == "__main__":
    sys.exit(main())
