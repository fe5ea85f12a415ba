"""What is durable is a step, each step has a name of its own, and the page tells them all."""

from __future__ import annotations

from pathlib import PurePosixPath

import pytest

from tools import durable_steps
from tools.style import REPOSITORY

MODULE = PurePosixPath("millstream/a.py")


@pytest.mark.slow
def test_everything_durable_is_a_step_with_a_name_of_its_own() -> None:
    assert len(durable_steps.steps()) > 40
    assert not durable_steps.faults(), "\n".join(durable_steps.faults())


@pytest.mark.slow
def test_the_page_is_what_the_code_says() -> None:
    assert durable_steps.PAGE.read_text() == durable_steps.page(), "run tools/durable_steps.py"


@pytest.mark.parametrize("way", durable_steps.EXEMPT)
def test_what_is_left_out_is_there(way: tuple[str, str]) -> None:
    path, function = way
    assert list(REPOSITORY.glob(f"{path}*")), path
    if path.endswith(".py"):
        assert function.rpartition(".")[2] in (REPOSITORY / path).read_text()


@pytest.mark.parametrize(
    "call",
    [
        "os.fsync(descriptor)",
        "os.replace(a, b)",
        "os.pwritev(descriptor, buffers, 0)",
        "shutil.rmtree(path)",
        "path.rename(other)",
        "self.path.write_text(text)",
        "temporary.replace(path)",
        "path.unlink(missing_ok=True)",
        "self._files.sync(descriptor)",
        "write_all(files, descriptor, buffers, 0)",
        "self._connection.publish(subject, data)",
        "self._connection.api(f'STREAM.CREATE.{name}', config)",
        "until_answered(connection, f'STREAM.{how}.{name}')",
        "self._ask('STREAM.PURGE', {})",
    ],
)
def test_what_is_durable_and_no_step_is_seen(call: str) -> None:
    bare = f"def run():\n    {call}\n"
    inside = f"def run():\n    with contextlib.suppress(OSError), step('a.b'):\n        {call}\n"
    # A function that is only defined inside a step is called outside it.
    defined = f"def run():\n    with step('a.b'):\n        def later():\n            {call}\n"
    assert len(durable_steps.look(MODULE, bare).faults) == 1
    assert durable_steps.look(MODULE, inside).faults == []
    assert len(durable_steps.look(MODULE, defined).faults) == 1


@pytest.mark.parametrize("call", ["text.replace('a', 'b')", "name.replace(x)", "api('STREAM.INFO.x')", "os.read(0, 1)"])
def test_what_is_not_durable_is_left_alone(call: str) -> None:
    assert durable_steps.look(MODULE, f"{call}\n").faults == []


@pytest.mark.parametrize("name", ["log", "'Log.sync'", "'sync'", "name", "f'log.{what}'"])
def test_a_name_that_no_list_can_hold_is_seen(name: str) -> None:
    assert len(durable_steps.look(MODULE, f"with step({name}):\n    pass\n").faults) == 1
