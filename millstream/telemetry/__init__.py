"""What a process tells about itself: traces, metrics, logs."""

from millstream.telemetry.opening import Identity, ProcessTelemetry, open_telemetry
from millstream.telemetry.telemetry import Telemetry

__all__ = ["Identity", "ProcessTelemetry", "Telemetry", "open_telemetry"]
