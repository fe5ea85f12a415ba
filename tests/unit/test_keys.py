"""Keys of any bytes have texts of their own, and come back from them."""

from __future__ import annotations

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from millstream.keys import former_text_of_key, key_of_text, text_of_key

KEYS = (
    st.binary(max_size=40) | st.text(max_size=20).map(str.encode) | st.binary(max_size=9).map(lambda key: b"\\x" + key)
)


@given(KEYS)
@example((200).to_bytes(8, "big"))
@example(b"\\x00")
@example(b"")
def test_a_key_comes_back_from_its_text(key: bytes) -> None:
    text = text_of_key(key)
    assert text.decode().encode() == text
    assert key_of_text(text) == key


@given(KEYS, KEYS)
@example((200).to_bytes(8, "big"), b"00000000000000c8")
@example(b"\xff", b"\\xff")
def test_two_keys_have_two_texts(one: bytes, other: bytes) -> None:
    assert (text_of_key(one) == text_of_key(other)) == (one == other)


@given(st.text(max_size=40))
@example("\\xFF")
@example("\\x61")
@example("\\x0")
def test_a_text_that_no_key_has_is_its_own_key(text: str) -> None:
    key = key_of_text(text.encode())
    assert text_of_key(key) == text.encode() or key == text.encode()


@pytest.mark.parametrize(
    ("key", "text", "former"),
    [
        (b"user-1", b"user-1", b"user-1"),
        ("\u00fc".encode(), "\u00fc".encode(), "\u00fc".encode()),
        (b"\x00\xc8", b"\\x00c8", b"00c8"),
        (b"\\x00", b"\\x5c783030", b"\\x00"),
    ],
)
def test_texts(key: bytes, text: bytes, former: bytes) -> None:
    assert (text_of_key(key), former_text_of_key(key)) == (text, former)
