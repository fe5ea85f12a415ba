"""What a process tells about itself: traces, metrics, logs."""

from millstream.telemetry.opening import open_telemetry
from millstream.telemetry.telemetry import Telemetry

__all__ = ["Telemetry", "open_telemetry"]
