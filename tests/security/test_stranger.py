"""The stranger of these tests is one: what is refused to them is refused because of who they are."""

from __future__ import annotations

from pathlib import Path

from tests.security.conftest import NOBODY, Stranger


def test_is_another_user_in_no_group(stranger: Stranger) -> None:
    done = stranger.run("print(os.getresuid(), os.getresgid(), os.getgroups())")

    assert done.stdout.strip() == f"{(NOBODY,) * 3} {(NOBODY,) * 3} []", done.stderr


def test_reads_what_everybody_may_and_nothing_else(stranger: Stranger, open_folder: Path) -> None:
    shown, hidden = open_folder / "shown", open_folder / "hidden"
    for path, mode in ((shown, 0o644), (hidden, 0o600)):
        path.write_text("secret")
        path.chmod(mode)

    assert stranger.reads(shown) == "secret"
    assert stranger.reads(hidden) is None
