"""Pages that are generated from the code: writes them, or compares them with the existing ones."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path


def write_or_check(contents: Mapping[Path, str], script: str, about: str, arguments: Sequence[str] | None) -> int:
    """Write each file's expected contents, or fail with `--check` if a file is stale. Returns the exit code.

    `script`: the command that writes them. `about`: its description.
    """
    parser = argparse.ArgumentParser(description=about)
    parser.add_argument("--check", action="store_true", help="write nothing; fail if a file is stale")
    check = parser.parse_args(arguments).check
    stale = []
    for file, text in contents.items():
        if not check:
            file.write_text(text, encoding="utf-8")
        elif not file.exists() or file.read_text(encoding="utf-8") != text:
            stale.append(file.name)
    if stale:
        print(f"stale: {', '.join(stale)}; run python {script}", file=sys.stderr)
    return 1 if stale else 0
