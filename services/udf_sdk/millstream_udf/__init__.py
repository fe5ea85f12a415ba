"""Write the steps of a Millstream pipeline as Python functions.

    def process(value: bytes) -> bytes:
        return value.upper()

is a step and needs no import. The decorators are for functions that take whole records or batches, are async, or are
sinks, sources or reduce functions. `millstream_udf.testing` runs a function without a pipeline.

The package serves functions to a pipeline over a unix socket. It needs only grpcio and protobuf, and imports nothing
from the `millstream` distribution.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from millstream_udf import metrics
    from millstream_udf.context import Context
    from millstream_udf.decorators import map, reduce, sink, source, source_transform
    from millstream_udf.position_table import PositionTable
    from millstream_udf.server import serve
    from millstream_udf.settings import ConfigError, SecretError, config, secret
    from millstream_udf.state_specs import StateError
    from millstream_udf.states import (
        Counter,
        LazyMap,
        State,
        StateList,
        StateMap,
        counter,
        list_state,
        map_state,
        value,
    )
    from millstream_udf.tables import Table, table
    from millstream_udf.timers import Timer, cancel_timer, timer
    from millstream_udf.values import (
        Batch,
        DeadLetter,
        Drop,
        Fallback,
        Fenced,
        Message,
        Record,
        Retry,
        SinkLane,
        Window,
    )
    from millstream_udf.version import SDK_VERSION as __version__

__all__ = [
    "Batch",
    "ConfigError",
    "Context",
    "Counter",
    "DeadLetter",
    "Drop",
    "Fallback",
    "Fenced",
    "LazyMap",
    "Message",
    "PositionTable",
    "Record",
    "Retry",
    "SecretError",
    "SinkLane",
    "State",
    "StateError",
    "StateList",
    "StateMap",
    "Table",
    "Timer",
    "Window",
    "__version__",
    "cancel_timer",
    "config",
    "counter",
    "list_state",
    "map",
    "map_state",
    "metrics",
    "reduce",
    "secret",
    "serve",
    "sink",
    "source",
    "source_transform",
    "table",
    "timer",
    "value",
]


_HOMES = {
    **dict.fromkeys(("map", "reduce", "sink", "source", "source_transform"), "decorators"),
    **dict.fromkeys(("Batch", "DeadLetter", "Drop", "Fallback", "Fenced", "Message"), "values"),
    **dict.fromkeys(("Record", "Retry", "SinkLane", "Window"), "values"),
    **dict.fromkeys(("Counter", "LazyMap", "State", "StateList", "StateMap"), "states"),
    **dict.fromkeys(("counter", "list_state", "map_state", "value"), "states"),
    **dict.fromkeys(("ConfigError", "SecretError", "config", "secret"), "settings"),
    **dict.fromkeys(("Table", "table"), "tables"),
    **dict.fromkeys(("Timer", "cancel_timer", "timer"), "timers"),
    "Context": "context",
    "PositionTable": "position_table",
    "StateError": "state_specs",
    "serve": "server",
}
"""The module of each name."""


def __getattr__(name: str) -> Any:
    # A module is imported when one of its names is used. The mesh imports the wire modules and column codecs of this
    # package, and does not need the rest.
    if name == "__version__":
        return import_module("millstream_udf.version").SDK_VERSION
    if name == "metrics":
        return import_module("millstream_udf.metrics")
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    found = getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
    globals()[name] = found
    return found
