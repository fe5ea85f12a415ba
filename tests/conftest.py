"""What tests of several packages share."""

from __future__ import annotations

import asyncio
import gc
import os
import signal
from collections.abc import Generator, Iterator
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import hypothesis
import pytest
from xdist.scheduler.loadfile import LoadFileScheduling

from tests.support import go_programs as go_programs_module
from tests.support import sizes

if TYPE_CHECKING:
    from xdist.remote import Producer

    from tests.spark_driver import SparkDriver
    from tests.support.azure_server import AzureServer
    from tests.support.kafka_server import KafkaServer
    from tests.support.mariadb_server import MariaServer
    from tests.support.mqtt_broker import MqttServer
    from tests.support.object_server import Bucket, ObjectServer
    from tests.support.opensearch_server import OpenSearchServer
    from tests.support.postgres_server import PostgresServer
    from tests.support.pubsub_server import PubsubServer
    from tests.support.pulsar_server import PulsarServer
    from tests.support.rabbit_server import RabbitServer
    from tests.support.redis_server import RedisServer
    from tests.support.sqs_server import SqsServer

# A JVM of a test lives for seconds: code that runs so briefly is not worth a compiler that optimises it, which takes
# a fifth of the processor time.
os.environ["JDK_JAVA_OPTIONS"] = "-XX:TieredStopAtLevel=1"

# A shell that starts the tests in the background has them ignore Ctrl-C, and with them all that they start.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

# How long an example takes says how busy the machine is. A change is judged by the same examples as the one before it;
# `make test-all` looks for new ones.
hypothesis.settings.register_profile(
    "untimed", deadline=None, derandomize=not sizes.ALL, max_examples=sizes.sized(30, 100)
)
hypothesis.settings.load_profile("untimed")
# For `make check`, which looks at everything a little.
hypothesis.settings.register_profile("quick", deadline=None, max_examples=10)
# Of `tools/defects.py`: that a test fails is enough, and the smallest example would take minutes.
_SEARCH = (hypothesis.Phase.explicit, hypothesis.Phase.generate)
hypothesis.settings.register_profile(
    "unshrunk", hypothesis.settings.get_profile("untimed"), phases=_SEARCH, max_examples=100
)


SLOW_STARTS = {
    "kafka": "KafkaServer",
    "rabbit": "RabbitServer",
    "pulsar": "PulsarServer",
    "opensearch": "OpenSearchServer",
    "spark_session": "SparkSession",
    "spark": "SparkDriver",
}
"""Fixtures of what takes seconds of a processor to start, and their types."""
START_S = 400
"""On a busy machine, such a start may take longer than a test of another kind may."""
OF_GO = frozenset({"go", "go_programs"})
"""Fixtures, and values of parameters, of tests that may have to wait until programs in Go are built."""


@pytest.fixture(autouse=True, scope="session")
def patient_online_checks() -> Iterator[None]:
    """How soon servers answer `validate --online` says how busy the machine is."""
    from millstream_runner.local import online

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(online, "ONLINE_CHECK_TIMEOUT_S", 300.0)
        yield


@pytest.hookimpl(wrapper=True)
def pytest_collection(session: pytest.Session) -> Generator[None, Any, Any]:
    """Tests and modules live to the end: to look through them for garbage again and again takes a twentieth of
    `make check`."""
    gc.disable()
    result = yield
    gc.enable()
    gc.freeze()
    return result


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leaves sweeps to `make test-all`; keeps the tests of a slow server together; gives those that may have to start
    one the time for it."""
    if not sizes.ALL:
        marked = [(item, item.get_closest_marker("sweep") is not None) for item in items]
        config.hook.pytest_deselected(items=[item for item, is_sweep in marked if is_sweep])
        items[:] = [item for item, is_sweep in marked if not is_sweep]
    # A server ends after the last of its tests that follow each other, and a process can open one Spark session only.
    groups: dict[str, int] = {}
    items.sort(key=lambda item: groups.setdefault(_group_of(item.nodeid), len(groups)))
    for item in items:
        fixtures: list[str] = getattr(item, "fixturenames", [])
        timeout = item.get_closest_marker("timeout")
        limit_s = float(config.getini("timeout")) if timeout is None else float(timeout.args[0])
        if not SLOW_STARTS.keys().isdisjoint(fixtures) and timeout is None:
            item.add_marker(pytest.mark.timeout(limit_s + START_S))
        parameters = getattr(item, "callspec", None)
        if not OF_GO.isdisjoint(fixtures) or (parameters is not None and "go" in parameters.id.split("-")):
            # Of several, the first one counts.
            item.add_marker(pytest.mark.timeout(limit_s + go_programs_module.BUILD_S), append=False)


class _ByServer(LoadFileScheduling):  # type: ignore[misc]  # it has no types
    """One process runs all tests of a file; of what takes seconds to start, one process runs all tests."""

    def _split_scope(self, nodeid: str) -> str:
        return _group_of(nodeid)


def _group_of(nodeid: str) -> str:
    """The tests that one process runs one after the other: those of a slow server, or of a file."""
    path, _, parameters = nodeid.partition("[")
    path = path.partition("::")[0]
    # Other unit tests start no server, whatever they are called.
    named = None if path.startswith("tests/unit/") else next((name for name in SLOW_STARTS if name in parameters), None)
    return named or _server_of(path) or path


@pytest.hookimpl(trylast=True)
def pytest_runtest_teardown(item: pytest.Item, nextitem: pytest.Item | None) -> None:
    """Ends a server that no later test of this process asks for. One that waits takes 3 to 5 % of a processor, and a
    Pulsar that was killed once takes half of one."""
    group = _group_of(item.nodeid)
    if group not in SLOW_STARTS or (nextitem is not None and _group_of(nextitem.nodeid) == group):
        return
    assert isinstance(item, pytest.Function)
    # Pytest has no public way to end a fixture before its scope does.
    request: Any = item._request
    for fixture in item.session._fixturemanager.getfixturedefs(group, item) or ():
        fixture.finish(request)


@cache
def _server_of(path: str) -> str | None:
    """What the tests of a file ask for that is slow to start. The process that shares them out has imported none."""
    text = Path(path).read_text(encoding="utf-8") if path.startswith("tests/") and Path(path).exists() else ""
    return next((name for name, kind in SLOW_STARTS.items() if f"{name}: {kind}" in text), None)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Producer) -> _ByServer:
    return _ByServer(config, log)


def pytest_unconfigure(config: pytest.Config) -> None:
    """Names what failed in the very last lines: all that is kept of many a log is its end."""
    reporter = config.pluginmanager.get_plugin("terminalreporter")
    if reporter is None:
        return
    for outcome in ("failed", "error"):
        for report in reporter.stats.get(outcome, ()):
            crash = getattr(report.longrepr, "reprcrash", None)
            reason = crash.message.splitlines()[0][:200] if crash and crash.message else ""
            reporter.write_line(f"failed: {report.nodeid} ({report.when}): {reason}")


@pytest.fixture(scope="session")
def spark() -> Iterator[SparkDriver]:
    """A Spark driver that is ready, the same one for every test that asks for it. Who kills one starts its own."""
    # Its imports take a second, and most tests do without.
    from tests.spark_driver import open_spark_driver

    with open_spark_driver() as driver:
        asyncio.run(driver.ready())
        yield driver


@pytest.fixture(scope="session")
def go_programs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory with the programs of `examples/udf-go`."""
    if go_programs_module.toolchain() is None:
        pytest.skip("no Go toolchain on the PATH: functions, sources and sinks in Go are not tested here")
    own = tmp_path_factory.getbasetemp()
    # With xdist, the directory above is that of all processes.
    return go_programs_module.built_in(own.parent if "PYTEST_XDIST_WORKER" in os.environ else own)


@pytest.fixture(scope="session")
def postgres() -> Iterator[PostgresServer]:
    """A PostgreSQL server, the same one for every test that asks for it. Who kills one starts its own."""
    from tests.support.postgres_server import open_postgres, why_missing

    if why := why_missing():
        pytest.skip(why)
    with open_postgres() as server:
        yield server


@pytest.fixture(scope="session")
def mariadb() -> Iterator[MariaServer]:
    """A MariaDB server, the same one for every test that asks for it. A test that kills it starts it again."""
    from tests.support.mariadb_server import open_mariadb, why_missing

    if why := why_missing():
        pytest.skip(why)
    with open_mariadb() as server:
        yield server


@pytest.fixture(scope="session")
def kafka(tmp_path_factory: pytest.TempPathFactory) -> Iterator[KafkaServer]:
    """A Kafka broker that is up, the same one for every test that asks for it. A test that kills it starts it again."""
    from tests.support.kafka_server import open_kafka, why_missing

    if why := why_missing():
        pytest.skip(why)
    with open_kafka(tmp_path_factory.mktemp("kafka")) as server:
        yield server


@pytest.fixture(scope="session")
def rabbit() -> Iterator[RabbitServer]:
    """A RabbitMQ server, the same one for every test that asks for it. A test that kills it starts it again."""
    from tests.support.rabbit_server import open_rabbit, why_missing

    if why := why_missing():
        pytest.skip(why)
    with open_rabbit() as server:
        yield server


@pytest.fixture(scope="session")
def pulsar() -> Iterator[PulsarServer]:
    """A standalone Pulsar, the same one for every test that asks for it. A test that kills it starts it again."""
    from tests.support.pulsar_server import open_pulsar, why_missing

    if why := why_missing():
        pytest.skip(why)
    with open_pulsar() as server:
        yield server


@pytest.fixture(scope="session")
def sqs() -> Iterator[SqsServer]:
    """A server that emulates SQS, the same one for every test that asks for it."""
    from tests.support.sqs_server import open_sqs, why_missing

    if why := why_missing():
        pytest.skip(why)
    with open_sqs() as server:
        yield server


@pytest.fixture(scope="session")
def pubsub() -> Iterator[PubsubServer]:
    """A server that emulates Pub/Sub, the same one for every test that asks for it."""
    from tests.support.pubsub_server import open_pubsub, why_missing

    if why := why_missing():
        pytest.skip(why)
    with open_pubsub() as server:
        yield server


@pytest.fixture(scope="session")
def opensearch() -> Iterator[OpenSearchServer]:
    """An OpenSearch node, the same one for every test that asks for it. A test that kills it starts it again."""
    from tests.support.opensearch_server import open_opensearch, why_missing

    if why := why_missing():
        pytest.skip(why)
    with open_opensearch() as server:
        yield server


@pytest.fixture(scope="session")
def elasticsearch() -> Iterator[OpenSearchServer]:
    """The same for Elasticsearch."""
    from tests.support.opensearch_server import ELASTICSEARCH, open_opensearch, why_missing

    if why := why_missing(ELASTICSEARCH):
        pytest.skip(why)
    with open_opensearch(ELASTICSEARCH) as server:
        yield server


@pytest.fixture(scope="session")
def mqtt() -> Iterator[MqttServer]:
    """An MQTT broker, the same one for every test that asks for it. A test that kills it starts it again."""
    from tests.support.mqtt_broker import open_mqtt, why_missing

    if why := why_missing():
        pytest.skip(why)
    with open_mqtt() as server:
        yield server


@pytest.fixture(scope="session")
def redis() -> Iterator[RedisServer]:
    """A Redis server, the same one for every test that asks for it. Who kills one starts its own."""
    from tests.support.redis_server import open_redis

    with open_redis() as server:
        yield server


@pytest.fixture(scope="session")
def objects() -> Iterator[ObjectServer]:
    """A server with buckets, the same one for every test that asks for it. A test that kills it starts it again."""
    from tests.support.object_server import open_objects_server, why_missing

    if why := why_missing():
        pytest.skip(why)
    with open_objects_server() as server:
        yield server


@pytest.fixture(scope="session")
def azure() -> Iterator[AzureServer]:
    """Azure's blob storage, emulated, the same server for every test that asks for it."""
    from tests.support.azure_server import open_azure, why_missing

    if why := why_missing():
        pytest.skip(why)
    with open_azure() as server:
        yield server


@pytest.fixture(params=["s3", pytest.param("az", marks=pytest.mark.sweep)])
def any_bucket(request: pytest.FixtureRequest) -> Bucket:
    """A new bucket of each kind of object store."""
    server: ObjectServer | AzureServer = request.getfixturevalue({"s3": "objects", "az": "azure"}[request.param])
    return server.bucket()
