"""Sends logs to a collector over OTLP, in addition to the lines on standard error.

Above it: `opening.py`. Below it: OpenTelemetry's SDK, whose interface for logs may still change; a test sends some.
The `extra` of a log record becomes attributes, as it becomes fields of a line.
"""

from __future__ import annotations

import logging

from opentelemetry._logs import LogRecord, SeverityNumber
from opentelemetry.exporter.otlp.proto.grpc._log_exporter import OTLPLogExporter
from opentelemetry.sdk._logs import LoggerProvider
from opentelemetry.sdk._logs.export import BatchLogRecordProcessor
from opentelemetry.sdk.resources import Resource

from millstream.telemetry.logging import fields_of

_NANOSECONDS = 1_000_000_000
_SEVERITIES = (
    (logging.CRITICAL, SeverityNumber.FATAL),
    (logging.ERROR, SeverityNumber.ERROR),
    (logging.WARNING, SeverityNumber.WARN),
    (logging.INFO, SeverityNumber.INFO),
    (logging.DEBUG, SeverityNumber.DEBUG),
)
_NOT_EXPORTED = ("opentelemetry", "grpc")
"""The exporter's own loggers: while a collector is away, exporting their messages would cause more such messages."""
_ATTRIBUTE_TYPES = (str, bool, int, float)


class LogExport(logging.Handler):
    """A handler that passes log records to the exporter's own thread."""

    def __init__(self, resource: Resource, timeout_s: float | None) -> None:
        super().__init__()
        self._provider = LoggerProvider(resource, shutdown_on_exit=False)
        self._provider.add_log_record_processor(BatchLogRecordProcessor(OTLPLogExporter(timeout=timeout_s)))
        self._logger = self._provider.get_logger("millstream")

    def emit(self, record: logging.LogRecord) -> None:
        if record.name.partition(".")[0] in _NOT_EXPORTED:
            return
        fields = {"logger": record.name, **fields_of(record)}
        trace_id = str(fields.pop("trace_id", ""))
        self._logger.emit(
            LogRecord(
                timestamp=int(record.created * _NANOSECONDS),
                severity_text=record.levelname.lower(),
                severity_number=next(
                    (number for level, number in _SEVERITIES if record.levelno >= level), SeverityNumber.TRACE
                ),
                body=record.getMessage(),
                attributes={
                    name: value if isinstance(value, _ATTRIBUTE_TYPES) else str(value) for name, value in fields.items()
                }
                | ({"trace_id": trace_id} if trace_id else {}),
                exception=record.exc_info[1] if record.exc_info else None,
            )
        )

    def shut_down(self) -> None:
        """Sends the remaining records. Nothing is sent after that."""
        self._provider.shutdown()
