"""JSON in the wire format is passed on only if it is JSON in UTF-8."""

import pytest

from millstream_connectors.shared.formats.json_values import checked


@pytest.mark.parametrize("value", [b'{"a": 1}', b'"\\ud800"', '"ü"'.encode()])
def test_json_is_passed_on_as_it_is(value: bytes) -> None:
    assert checked(value) == value


@pytest.mark.parametrize(
    "value", [b"NaN", b'{"a": Infinity}', '"ü"'.encode("utf-16"), b'"\xff"', b"\xef\xbb\xbf1", b"1 2"]
)
def test_what_is_not_json_is_refused(value: bytes) -> None:
    with pytest.raises(ValueError, match="the value is not JSON"):
        checked(value)
