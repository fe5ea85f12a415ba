"""The contents of an access file are read, or refused with the file's name, whatever they are."""

from __future__ import annotations

from pathlib import Path

import pytest

from millstream import codes
from millstream.buffers.access_files import read_access
from millstream.spec.values import SpecModel, Text
from tests.support.errors import raises
from tests.support.sizes import sized


class Written(SpecModel):
    """What a technology takes."""

    noun = "access"

    name: Text


@pytest.mark.parametrize("text", ['{"name": "x"}', "name: x\n", '{"name": "x"} # a comment'])
def test_json_and_yaml_are_read_alike(tmp_path: Path, text: str) -> None:
    file = tmp_path / "access"
    file.write_text(text)
    assert read_access(file, Written).name == "x"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("text", "what"),
    [
        ("[" * sized(10_000, 60_000), "nested too deeply"),
        ('{"name":' * 8_000, "nested too deeply"),
        ('{"name": "x", "name": "y"}', "appears twice"),
        ('{"name": 1}', "name"),
        ("{", "access"),
    ],
)
def test_anything_else_is_refused(tmp_path: Path, text: str, what: str) -> None:
    file = tmp_path / "access"
    file.write_text(text)
    with raises(codes.BROKER_ACCESS_FILE, match=what):
        read_access(file, Written)
