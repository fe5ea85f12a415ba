"""Telemetry of a process: traces, metrics and logs."""

from millstream.telemetry.opening import Identity, ProcessTelemetry, open_telemetry
from millstream.telemetry.telemetry import Telemetry

__all__ = ["Identity", "ProcessTelemetry", "Telemetry", "open_telemetry"]
