"""Writes the settings of each source and sink into its page under docs/.

A page has a line `<!-- settings of source kafka -->` and, below it, `<!-- end of settings -->`. Between them are the
guarantee, the end, the extra and a table of all settings, generated from the connector and its model. With --check
nothing is written, and the exit code is 1 if a page is not up to date.
"""

import re
import sys
from collections.abc import Iterator
from pathlib import Path

if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from millstream.spec.connectors import SINKS, SOURCES, Connector, SourceKind
from millstream.spec.options import options_of
from millstream.spec.registry import OURS
from millstream.spec.values import SpecModel
from tools.pages import write_or_check

ROOT = Path(__file__).resolve().parent.parent
BEGIN = "<!-- settings of {} {} -->"
END = "<!-- end of settings -->"
_PART = re.compile(f"{BEGIN.format('(source|sink)', '([a-zA-Z]+)')}\n.*?{END}\n", re.DOTALL)


def pages() -> Iterator[Path]:
    """The pages about connectors."""
    docs = ROOT / "docs"
    yield from (docs / "sources.md", docs / "sinks.md", *sorted((docs / "connectors").glob("*.md")))


def described() -> Iterator[tuple[str, str]]:
    """`source` or `sink` and the name of each connector whose settings are in a page."""
    for page in pages():
        yield from _PART.findall(page.read_text(encoding="utf-8"))


def existing() -> Iterator[tuple[str, str]]:
    """`source` or `sink` and the name of each of Millstream's connectors."""
    for registry in (SOURCES, SINKS):
        yield from ((registry.noun, name) for name in registry.names if registry.package_of(name) == OURS)


def contents() -> dict[Path, str]:
    """The expected contents of each page."""
    return {page: _PART.sub(_filled, page.read_text(encoding="utf-8")) for page in pages()}


def _filled(part: re.Match[str]) -> str:
    noun, name = part.groups()
    connector: Connector[SpecModel] = (SOURCES if noun == "source" else SINKS).load(name)
    return "\n".join((BEGIN.format(noun, name), "", *_settings(connector), "", END, ""))


def _settings(connector: Connector[SpecModel]) -> Iterator[str]:
    facts = [f"Guarantee: {_lower(connector.promise.sentence)}."]
    if isinstance(connector, SourceKind):
        facts.append(f"Ends: {connector.ends}.")
    if connector.packages:
        facts.append(
            f"Needs: {', '.join(f'`pip install {each!r}`' for each in dict.fromkeys(connector.packages.values()))}."
        )
    yield " ".join(facts)
    yield ""
    options = options_of(connector.model)
    if not options:
        yield "It has no settings: write `{}`."
        return
    yield "| setting | type | default | meaning |"
    yield "|---|---|---|---|"
    for option in options:
        default = option.default if option.default in ("", "required", "its defaults") else f"`{option.default}`"
        cells = (f"`{option.name}`", option.type, default, option.meaning)
        yield "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"


def _lower(text: str) -> str:
    return text[:1].lower() + text[1:].rstrip(".")


def main(arguments: list[str] | None = None) -> int:
    """Write or check the pages."""
    return write_or_check(contents(), "tools/connector_pages.py", __doc__ or "", arguments)


if __name__ == "__main__":
    sys.exit(main())
