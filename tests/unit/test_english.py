"""The prose of the repository is plain technical English: none of the words in `tools/english.py` is in it."""

from __future__ import annotations

from pathlib import Path, PurePosixPath

import pytest

from tools.english import LEFT_OUT, REPOSITORY, RULES, Rule, faults_of
from tools.style import texts

CONTRIBUTING = (REPOSITORY / "CONTRIBUTING.md").read_text(encoding="utf-8")


def test_the_repository_uses_the_words_we_agreed_on() -> None:
    faults = [
        fault
        for path in texts()
        for fault in faults_of(PurePosixPath(path.relative_to(REPOSITORY)), path.read_text(encoding="utf-8"))
    ]
    assert not faults, "\n".join(faults)


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.avoid)
def test_each_rule_finds_its_example_and_leaves_the_better_one(rule: Rule) -> None:
    page = PurePosixPath("docs/page.md")
    (fault, *_) = faults_of(page, rule.before)
    assert rule.write in fault
    assert faults_of(page, rule.after) == []
    assert f"| {rule.avoid} |" in CONTRIBUTING, "CONTRIBUTING.md shows every rule"
    assert rule.before in CONTRIBUTING
    assert rule.after in CONTRIBUTING


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("docs/page.md", "# Title\n\nfirst\nand nobody knows\n"),
        ("docs/page.md", "first line\nthat whoever\nreads\n"),
        ("docs/img/a.svg", '<svg>\n<g/>\n<text x="1">nobody\nthere</text></svg>'),
        ("millstream/a.py", 'x = 1\ny = 2\n\n"""Nobody knows."""\n'),
        ("millstream/a.py", "x = 1\ny = 2\n\nz = 3  # nobody knows\n"),
        ("millstream/a.py", 'raise ValueError(\n    "a message"\n    f"{path}: "\n    f"nobody knows"\n)\n'),
        ("sdk/go/a.go", "package a\n\n\n// nobody knows\nvar x = 1\n"),
        ("proto/a.proto", "a;\n\n\n// nobody knows\n"),
        ("deploy/a.yaml", "a: 1\n\n\nb: 2  # nobody knows\n"),
        ("deploy/Dockerfile", "FROM a\n\n\n# nobody knows\n"),
    ],
)
def test_prose_is_found_wherever_it_stands(name: str, text: str) -> None:
    (fault,) = faults_of(PurePosixPath(name), text)
    assert fault.startswith((f"{name}:4: ", f"{name}:3: ", f"{name}:2: "))


def test_a_phrase_is_found_over_the_end_of_a_line() -> None:
    text = "x = 1\n\n\ndef f() -> None:\n    # It is\n    # told.\n    return None\n"
    (fault,) = faults_of(PurePosixPath("millstream/a.py"), text)
    assert fault.startswith("millstream/a.py:5: `is")


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("docs/page.md", "`nobody` is a user of the system, [as here](nobody.md), and ``` too.\n"),
        ("docs/page.md", "```sh\nsetpriv --reuid nobody\n```\n"),
        ("docs/page.md", "There is no doubt: it is no longer there, and the two cannot be told apart.\n"),
        ("docs/page.md", "So is the first word of a question, and a name is so long.\n"),
        ("millstream/a.py", 'NOBODY = 65534\nnobody = somebody(NOBODY)\nUSER = "nobody"\n'),
        ("millstream/a.py", 'f"{NOBODY} is a number"\n'),
        ("sdk/go/a.go", "func nobody() { mend(anybody) }\n"),
        ("requirements/dev.txt", "# nobody wrote this\n"),
        ("LICENSE", "nobody shall\n"),
    ],
)
def test_names_and_code_are_left_alone(name: str, text: str) -> None:
    assert faults_of(PurePosixPath(name), text) == []


def test_what_is_left_out_is_there() -> None:
    assert [name for name in LEFT_OUT if not Path(REPOSITORY, name).is_file()] == []
