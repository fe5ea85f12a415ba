"""The drawings of the pages: they can be read in a light and a dark page, by eyes and by screen readers, offline."""

from __future__ import annotations

import re
import xml.etree.ElementTree as ElementTree
from pathlib import Path

import pytest

DOCS = Path(__file__).parents[2] / "docs"
DRAWINGS = sorted((DOCS / "img").glob("*.svg"))
SVG = "{http://www.w3.org/2000/svg}"
IMAGE = re.compile(r"!\[(?P<shown>[^\]]*)\]\((?P<target>[^)\s]+)\)")
WIDTH_OF_A_LETTER = 0.56
"""As a share of the size of the font: what a text of DejaVu Sans takes on average, which is a wide one."""


@pytest.mark.parametrize("drawing", DRAWINGS, ids=lambda path: path.stem)
def test_a_drawing_can_be_read_anywhere(drawing: Path) -> None:
    source = drawing.read_text(encoding="utf-8")
    root = ElementTree.fromstring(source)
    width, height = float(root.attrib["width"]), float(root.attrib["height"])
    assert root.attrib["viewBox"] == f"0 0 {width:g} {height:g}"
    assert "href" not in source, "it loads something"
    for name in ("title", "desc"):
        element = root.find(f"{SVG}{name}")
        assert element is not None
        assert len(element.text or "") > 10, f"no {name} for those who cannot see it"
    card = root.find(f"{SVG}rect")
    assert card is not None
    assert card.attrib["fill"] == "#ffffff", "without a background of its own it cannot be read in a dark page"
    for text in root.iter(f"{SVG}text"):
        said = text.text or ""
        long = WIDTH_OF_A_LETTER * float(text.attrib["font-size"]) * len(said)
        left = float(text.attrib["x"]) - long * {"start": 0.0, "middle": 0.5, "end": 1.0}[text.attrib["text-anchor"]]
        assert left >= 0, f"{said!r} begins left of the drawing"
        assert left + long <= width, f"{said!r} ends right of the drawing"
        assert 0 < float(text.attrib["y"]) < height, said


def test_each_drawing_is_on_a_page_and_each_picture_is_there() -> None:
    used = set()
    for page in DOCS.rglob("*.md"):
        for match in IMAGE.finditer(page.read_text(encoding="utf-8")):
            target = (page.parent / match["target"]).resolve()
            assert target.is_file(), f"{page}: {match['target']}"
            assert match["shown"], f"{page}: {match['target']} has no text for those who cannot see it"
            used.add(target)
    assert {drawing.resolve() for drawing in DRAWINGS} <= used
