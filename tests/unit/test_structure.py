"""Who imports whom, imports inside functions and for types included."""

from __future__ import annotations

from pathlib import Path

import pytest

from tools.structure import REPOSITORY, Structure


@pytest.fixture(scope="module")
def structure() -> Structure:
    return Structure(REPOSITORY)


@pytest.mark.slow
def test_no_module_imports_one_that_imports_it(structure: Structure) -> None:
    assert structure.circles == []


@pytest.mark.slow
def test_no_package_imports_one_above_it(structure: Structure) -> None:
    assert structure.upward == []


def test_circles_wide_classes_and_imports_upward_are_seen(tmp_path: Path) -> None:
    many = "; ".join(f"self.a{number} = 1" for number in range(21))
    sources = {
        "millstream/__init__.py": "",
        "millstream/a.py": '"""A."""\nfrom millstream.b import f\nimport millstream_reader.c\n',
        "millstream/b.py": f"def f():\n    from millstream import a\nclass B:\n    def __init__(self): {many}\n",
        "services/reader/millstream_reader/__init__.py": "",
        "services/reader/millstream_reader/c.py": "from millstream.a import g\n",
    }
    for name, source in sources.items():
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(source)
    found = Structure(tmp_path)
    assert found.circles == [["millstream.a", "millstream.b", "millstream_reader.c"]]
    assert found.upward == ["millstream.a imports millstream_reader.c"]
    assert found.wide_classes == ["millstream.b.B: 21"]
    assert found.modules["millstream.a"].statements == 2
