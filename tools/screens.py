"""Writes docs/screens.md: what a person sees of a run on terminals of 80 and 120 columns, and the report it leaves.

Everything on the page comes from one real run on a real pseudo-terminal: `python tools/screens.py`. Times and rates are
those of the machine it ran on, so no check compares them. A browser photographs the report and the landing page of the
site: Chromium, which has to be on the PATH (Debian's package `chromium`).
"""

from __future__ import annotations

import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parent.parent
if __name__ == "__main__":
    sys.path.insert(0, str(REPOSITORY))

from tests.support.terminal import Terminal, open_terminal  # noqa: E402

PAGE = REPOSITORY / "docs" / "screens.md"
PICTURES = REPOSITORY / "docs" / "img"
BROWSER = (
    *("--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars", "--no-first-run"),
    *("--disable-background-networking", "--disable-component-update", "--disable-sync"),
)
FUNCTION = """\
import time


def process(value):
    time.sleep(0.0005)
    return value
"""
PIPELINE = """\
apiVersion: millstream.io/v1alpha1
kind: Pipeline
metadata: {name: orders}
spec:
  limits: {bufferMaxLength: 10000}
  vertices:
    - name: read
      source: {generator: {rpu: 2000, duration: 500ms}}
    - name: price
      udf: {python: "price.py:process"}
    - name: all
      sink: {blackhole: {}}
    - name: bad
      sink: {blackhole: {}}
  edges:
    - {from: read, to: price}
    - {from: price, to: all}
    - {from: price, to: bad, kind: deadLetter}
"""
COMMAND = (sys.executable, "-m", "millstream_runner")


def main() -> int:
    with tempfile.TemporaryDirectory() as name, open_terminal(80, 24) as own, open_terminal(120, 24) as wide:
        directory = Path(name)
        (directory / "price.py").write_text(FUNCTION, encoding="utf-8")
        (directory / "pipeline.yaml").write_text(PIPELINE, encoding="utf-8")
        run = own.start(*COMMAND, "run", "pipeline.yaml", "--report", "report.html", cwd=directory)
        try:
            own.until(lambda terminal: any(line.startswith("slow: price") for line in terminal.shown))
            narrow = own.shown
            watch = wide.start(*COMMAND, "status", "--watch", cwd=directory)
            wide.until(lambda terminal: any(line.startswith("slow: price") for line in terminal.shown))
            watched = wide.shown
            own.type("\x03")
            run.wait(120)
            own.until(lambda terminal: "data directory:" in terminal.text)
            watch.wait(120)
        finally:
            run.kill()
            run.wait()
        PAGE.write_text(page(narrow, watched, ended(own)), encoding="utf-8")
        photograph(directory / "report.html", PICTURES / "report.png", 1000, 1500)
        site = directory / "site"
        mkdocs = (sys.executable, "-m", "mkdocs", "build", "--quiet", "--site-dir", str(site))
        subprocess.run(mkdocs, cwd=REPOSITORY, check=True)
        photograph(site / "index.html", PICTURES / "site.png", 1280, 900)
    print(f"{PAGE.relative_to(REPOSITORY)} is written, with its pictures")
    return 0


def photograph(file: Path, picture: Path, width: int, height: int) -> None:
    """What a browser shows of a page."""
    browser = shutil.which("chromium")
    if browser is None:
        raise SystemExit("there is no `chromium` on the PATH: install Debian's package of that name")
    with tempfile.TemporaryDirectory() as profile:
        command = [browser, *BROWSER, f"--user-data-dir={profile}", f"--window-size={width},{height}"]
        subprocess.run(
            [*command, f"--screenshot={picture}", file.as_uri()], check=True, timeout=300, stderr=subprocess.DEVNULL
        )


def ended(terminal: Terminal) -> list[str]:
    """The account that the run ends with."""
    lines = terminal.all
    last = next(index for index, line in enumerate(lines) if line.startswith("account:"))
    first = max(index for index, line in enumerate(lines[:last]) if line.startswith("VERTEX"))
    # Its heading may have two lines.
    first -= lines[first - 1].startswith(" ")
    # The sentence is wider than the terminal.
    behind = next(index for index, line in enumerate(lines) if "data directory:" in line)
    return lines[first:behind]


def page(narrow: list[str], wide: list[str], end: list[str]) -> str:
    parts = [
        "# Screens",
        "What a run looks like. `python tools/screens.py` writes this page from a real run on a terminal.",
        "## `millstream run`, 80 columns",
        "A slow function behind a fast source: the line below the table names it.",
        block(narrow),
        "## `millstream status --watch`, 120 columns",
        "The same run, from another terminal.",
        block(wide),
        "## The end, 80 columns",
        "After Ctrl-C: what is in flight is finished, and the account is shown. `--report` has written its page.",
        block(end),
        "## The report",
        "`report.html`, as a browser shows it, without a network.",
        "![The report of a run: how it ended, the pipeline, rates, delays, the account, what was slow](img/report.png)",
        "## The site",
        "`make docs` serves it.",
        "![The landing page of the documentation](img/site.png)",
    ]
    return "\n\n".join(parts) + "\n"


def block(lines: list[str]) -> str:
    return "\n".join(["```text", *(line.rstrip() for line in lines), "```"])


if __name__ == "__main__":
    sys.exit(main())
