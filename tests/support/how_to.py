"""The pages of docs/how-to, as tests follow them: `tools/follow.py` says what counts on a page."""

from __future__ import annotations

from pathlib import Path

from tools.follow import Block, blocks_of

HOW_TO = Path(__file__).parents[2] / "docs" / "how-to"
PAGES = sorted(HOW_TO.glob("*.md"))
OF_OTHERS = frozenset({"before_bytewax.py", "before_numaflow.py", "before_quix.py", "topics.py"})
"""Files that need packages which are not installed here. `benchmarks/moved_jobs.py` runs them."""


def files_of(page: Path) -> list[Block]:
    """The files that a page has its reader write, in its order; a name may come again with another text."""
    return [block for block in blocks_of(page) if block.title]


def write(file: Block, directory: Path) -> Path:
    """Write a file of a page below `directory`, in place of an earlier one of that name. Returns where it is."""
    path = directory / file.title
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(file.text, encoding="utf-8")
    return path
