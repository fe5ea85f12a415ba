"""The settings of Spark, for each kind of place it may run in."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from millstream import codes
from millstream.limits import MIB
from millstream.spec.loading import load_text
from millstream_reduce.spark.settings import (
    LOCAL_TASKS_MAX,
    SparkSettings,
    driver_conf,
    session_conf,
    settings_of,
)
from tests.support.errors import raises
from tests.unit.spec.test_reduce import reduce_of

SOCKETS = Path("/sockets")
OPTIONS = "spark.driver.extraJavaOptions"


def settings(**members: object) -> SparkSettings:
    return SparkSettings(Path("/scratch"), **members)  # type: ignore[arg-type]  # each test names members there are


@pytest.mark.parametrize(
    ("master", "effective", "tasks"),
    [
        ("local", "local[1,4]", 1),
        ("local[3]", "local[3,4]", 3),
        ("local[3,7]", "local[3,7]", 3),
        ("local[3, 7]", "local[3,7]", 3),
        ("spark://a:7077,b:7077", "spark://a:7077,b:7077", None),
        ("k8s://https://host", "k8s://https://host", None),
        ("yarn", "yarn", None),
    ],
)
def test_a_task_on_this_machine_is_tried_more_than_once(master: str, effective: str, tasks: int | None) -> None:
    given = settings(master=master)
    assert (given.effective_master, given.local_tasks, given.place) == (effective, tasks, effective)


def test_without_a_master_it_is_this_machine_with_at_least_two_tasks() -> None:
    tasks = settings().local_tasks
    assert tasks is not None
    assert 2 <= tasks <= LOCAL_TASKS_MAX
    assert settings().effective_master == f"local[{tasks},4]"
    assert settings(master="local[*]").local_tasks is not None


def test_a_spark_connect_server_runs_its_tasks_elsewhere() -> None:
    given = settings(remote="sc://host:15002")
    assert (given.local_tasks, given.place) == (None, "sc://host:15002")


def test_settings_survive_their_file() -> None:
    given = settings(master="local[2]", driver_memory_bytes=700 * MIB, conf={"spark.a": 'b "c"\n'}, name="p")
    assert SparkSettings.from_json(given.to_json()) == given
    for text in ("", "[]", "{}", json.dumps({"directory": "/a", "color": "red"})):
        with raises(codes.SPARK_SETTINGS):
            SparkSettings.from_json(text)


def test_on_this_machine_nothing_is_open_to_others_and_everything_lies_in_its_place() -> None:
    conf = driver_conf(settings(master="local[2]", driver_memory_bytes=700 * MIB), SOCKETS, [])
    assert conf["spark.driver.host"] == conf["spark.driver.bindAddress"] == "127.0.0.1"
    assert conf["spark.ui.enabled"] == "false"
    assert conf["spark.local.dir"] == "/scratch"
    assert conf["spark.python.unix.domain.socket.dir"] == "/sockets"
    assert conf["spark.driver.memory"] == "700m"
    assert conf["spark.sql.shuffle.partitions"] == "2"
    assert "-XX:+ExitOnOutOfMemoryError" in conf[OPTIONS]
    assert "-Djava.io.tmpdir=/scratch" in conf[OPTIONS]


@pytest.mark.parametrize("master", ["spark://host:7077", "k8s://https://host:6443"])
def test_executors_elsewhere_must_reach_the_driver_and_have_workers_of_their_own(master: str) -> None:
    conf = driver_conf(settings(master=master), SOCKETS, [])
    for name in ("spark.driver.host", "spark.driver.bindAddress", "spark.python.daemon.module"):
        assert name not in conf
    assert "spark.python.unix.domain.socket.dir" not in conf
    assert conf["spark.python.unix.domain.socket.enabled"] == "true"


def test_what_the_user_sets_comes_first_but_for_java_options_which_are_joined() -> None:
    theirs = {"spark.sql.shuffle.partitions": "7", OPTIONS: "-Da=1 -Db=2", "spark.driver.host": "10.0.0.1"}
    conf = driver_conf(settings(master="local[2]", conf=theirs), SOCKETS, ["-XX:AOTCache=/c"])
    assert (conf["spark.sql.shuffle.partitions"], conf["spark.driver.host"]) == ("7", "10.0.0.1")
    assert conf[OPTIONS].endswith("-XX:AOTCache=/c -Da=1 -Db=2")
    assert "-XX:+ExitOnOutOfMemoryError" in conf[OPTIONS]
    assert session_conf(settings(remote="sc://h", conf={"spark.sql.shuffle.partitions": "7"}))[
        "spark.sql.shuffle.partitions"
    ] == ("7")


@pytest.mark.parametrize(("theirs", "collectors"), [("", ["-XX:+UseSerialGC"]), ("-XX:+UseZGC -Da=1", ["-XX:+UseZGC"])])
def test_there_is_one_garbage_collector(theirs: str, collectors: list[str]) -> None:
    conf = driver_conf(settings(master="local[2]", conf={OPTIONS: theirs}), SOCKETS, [])
    assert [option for option in conf[OPTIONS].split() if option.startswith("-XX:+Use")] == collectors


def test_more_tasks_have_the_jvm_choose_its_collector() -> None:
    assert "-XX:+Use" not in driver_conf(settings(master="local[8]"), SOCKETS, [])[OPTIONS]


def test_two_tasks_have_the_jvm_optimize_later_unless_the_user_says_otherwise() -> None:
    options = driver_conf(settings(master="local[2]", conf={OPTIONS: "-XX:Tier4InvocationThreshold=1"}), SOCKETS, [])
    given = [option for option in options[OPTIONS].split() if "Tier4InvocationThreshold" in option]
    # The last one counts.
    assert given == ["-XX:Tier4InvocationThreshold=50000", "-XX:Tier4InvocationThreshold=1"]
    assert "Tier4" not in driver_conf(settings(master="local[8]"), SOCKETS, [])[OPTIONS]


def test_workers_of_queries_do_without_pandas() -> None:
    name = "spark.python.daemon.module"
    modules = [driver_conf(settings(functions=functions), SOCKETS, [])[name] for functions in (True, False)]
    assert modules == ["millstream_reduce.spark.function_daemon", "millstream_reduce.spark.worker_daemon"]


@pytest.mark.parametrize(
    ("program", "functions"), [("sql: {query: 'SELECT 1 FROM window'}", False), ("python: 'a:f'", True)]
)
def test_a_pipeline_says_whether_functions_run_in_the_workers(program: str, functions: bool) -> None:
    text = reduce_of(program).replace("  vertices:\n", "  vertices:\n    - {name: m, udf: {python: 'a:f'}}\n")
    text = text.replace("{from: in, to: sum}", "{from: in, to: m}, {from: m, to: sum}")
    pipeline = load_text(text, "p.yaml").pipeline
    assert settings_of(pipeline, Path("/base"), Path("/scratch")).functions is functions


def test_a_path_with_spaces_and_quotes_stays_one_option() -> None:
    conf = driver_conf(SparkSettings(Path('/a b/"c"'), master="local[2]"), SOCKETS, [])
    assert '"-Djava.io.tmpdir=/a b/\\"c\\""' in conf[OPTIONS]
