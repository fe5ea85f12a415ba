"""Errors as tests look for them: by their code, where the wording is not what is tested."""

from __future__ import annotations

import pytest

from millstream.codes.code import Code
from millstream.errors import MillstreamError


def raises(code: Code, match: str | None = None) -> pytest.RaisesExc[MillstreamError]:
    """As `pytest.raises`: the block has to end with an error of ours that has this code. `match`: the names, numbers
    and places that its text has to have, where they are what is tested."""
    return pytest.raises(MillstreamError, match=match, check=lambda error: error.code is code)
