"""What is shown of a traceback."""

from __future__ import annotations

import textwrap
from pathlib import Path

import pytest

from millstream.tracebacks import places, raised, shortened

IN_A_LIBRARY = """\
Traceback (most recent call last):
  File "{here}/functions.py", line 8, in price
    return json.dumps({{"total": helper(order)}})
                                ^^^^^^^^^^^^^
  File "{here}/pricing/helper.py", line 4, in helper
    return json.loads(order)
           ^^^^^^^^^^^^^^^^^
  File "/usr/lib/python3.11/json/__init__.py", line 346, in loads
    return _default_decoder.decode(s)
  File "/venv/lib/python3.11/site-packages/fast/decoder.py", line 1, in decode
    raise JSONDecodeError("Expecting value", s, err.value) from None
json.decoder.JSONDecodeError: Expecting value: line 1 column 1 (char 0)
Second line of the message.
"""


@pytest.fixture
def text(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.chdir(tmp_path)
    return IN_A_LIBRARY.format(here=tmp_path)


def test_the_users_own_code_is_shown_innermost_first(text: str) -> None:
    assert shortened(text) == [
        "json.decoder.JSONDecodeError: Expecting value: line 1 column 1 (char 0)",
        "pricing/helper.py:4, in helper: return json.loads(order)",
        "called from functions.py:8, in price",
    ]


def test_what_caused_it_is_not_what_was_raised_last(text: str) -> None:
    both = (
        'Traceback (most recent call last):\n  File "a.py", line 1, in f\n    1 / 0\nZeroDivisionError: x\n\n'
        "During handling of the above exception, another exception occurred:\n\n" + text
    )
    assert raised(both).startswith("json.decoder")
    assert len(places(both)) == 2


def test_a_syntax_error_has_its_place() -> None:
    text = textwrap.dedent("""\
        Traceback (most recent call last):
          File "f.py", line 1, in <module>
            import helper
          File "helper.py", line 3
            def f(:
                  ^
        SyntaxError: invalid syntax
        """)
    assert shortened(text) == ["SyntaxError: invalid syntax", "helper.py:3: def f(:", "called from f.py:1, in <module>"]


def test_quoted_with_an_indentation(text: str) -> None:
    assert shortened(textwrap.indent(text, "    ")) == shortened(text)


def test_a_library_alone_is_shown_where_there_is_nothing_else() -> None:
    text = 'Traceback (most recent call last):\n  File "/x/site-packages/a.py", line 1, in f\n    g()\nKeyError: 1\n'
    assert shortened(text) == ["KeyError: 1", "/x/site-packages/a.py:1, in f: g()"]


def test_other_text_is_given_as_it_is() -> None:
    assert shortened("one\ntwo\nthree\nfour\n") == ["two", "three", "four"]
    assert shortened("") == []
    assert places("panic: no\n\ngoroutine 1 [running]:") == []


def test_a_syntax_error_without_a_stack_has_its_place_too() -> None:
    text = 'starting\n  File "f.py", line 16\n    def x(:\n          ^\nSyntaxError: invalid syntax\n'
    assert shortened(text) == ["SyntaxError: invalid syntax", "f.py:16: def x(:"]
    assert raised('it reads File "f.py", line 16\nand says: Error: none') == ""
