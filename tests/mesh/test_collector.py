"""Traces, metrics and logs of a pipeline on their way through OpenTelemetry's own collector."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from millstream.die_with_parent import dying_with_parent
from millstream.ports import free_ports
from tests.support.children import started
from tests.support.pipelines import open_pipeline
from tests.unit.telemetry.collector import attributes, open_collector

if TYPE_CHECKING:
    from tests.mesh.conftest import PipelineFiles

PROGRAM = Path(__file__).parents[2] / ".cache" / "collector" / "otelcol"
START_TIMEOUT_S = 180
CONFIGURATION = """\
receivers: {{otlp: {{protocols: {{grpc: {{endpoint: "127.0.0.1:{port}"}}}}}}}}
exporters:
  # Without a queue an export is acknowledged when it has arrived behind the collector.
  otlp_grpc: {{endpoint: "{behind}", tls: {{insecure: true}}, sending_queue: {{enabled: false}}}}
service:
  telemetry: {{metrics: {{level: none}}, logs: {{level: warn}}}}
  pipelines:
    traces: {{receivers: [otlp], exporters: [otlp_grpc]}}
    metrics: {{receivers: [otlp], exporters: [otlp_grpc]}}
    logs: {{receivers: [otlp], exporters: [otlp_grpc]}}
"""

pytestmark = pytest.mark.skipif(not PROGRAM.exists(), reason="`make test-collector` builds OpenTelemetry's collector")


@asynccontextmanager
async def open_otelcol(directory: Path, behind: str) -> AsyncIterator[str]:
    """A collector that hands on what it takes. Its endpoint, when it listens."""
    port = free_ports()
    configuration = directory / "otelcol.yaml"
    configuration.write_text(CONFIGURATION.format(port=port, behind=behind.removeprefix("http://")))
    printed = directory / "otelcol.log"
    with printed.open("wb") as output:
        command = dying_with_parent([str(PROGRAM), "--config", str(configuration)])
        starting = started(*command, stdout=output, stderr=output)
        async with starting as process:
            async with asyncio.timeout(START_TIMEOUT_S):
                while True:
                    assert process.returncode is None, printed.read_text()
                    with suppress(OSError):
                        _, writer = await asyncio.open_connection("127.0.0.1", port)
                        writer.close()
                        await writer.wait_closed()
                        break
                    await asyncio.sleep(0.02)
            yield f"http://127.0.0.1:{port}"
            process.terminate()
            assert await process.wait() == 0, printed.read_text()
    assert not printed.read_text(), "it had nothing to complain of"


async def test_traces_metrics_and_logs_pass_the_real_collector(
    files: PipelineFiles, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    path = files.write(
        files.generator(100) + files.function("picky") + files.file_sink("out") + files.file_sink("dead"),
        ["in -> map", "map -> out", "{from: map, to: dead, kind: deadLetter}"],
    )
    caplog.set_level(logging.INFO)
    async with open_collector() as behind, open_otelcol(tmp_path, behind.endpoint) as endpoint:
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", endpoint)
        monkeypatch.setenv("OTEL_TRACES_SAMPLER", "always_on")
        async with open_pipeline(path, tmp_path / "broker") as run:
            await run.run()
    read = [span for span in behind.spans if span.name == "millstream.source.read"]
    written = [span for span in behind.spans if span.name == "millstream.sink.write"]
    assert {span.trace_id for span in written} <= {span.trace_id for span in read}
    assert written
    points = [
        (attributes(point.attributes)["vertex"], point.as_int)
        for metric in behind.all_metrics
        if metric.name == "forwarder_read_total"
        for point in metric.sum.data_points
    ]
    assert {("in", 100), ("map", 100)} <= set(points)
    assert ("info", "lane map/in-map.0 begins (epoch 1)") in {
        (record.severity_text, record.body.string_value) for record in behind.logs
    }
    assert behind.resource["service.name"].startswith("p-")
