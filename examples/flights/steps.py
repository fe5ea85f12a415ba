"""The functions of the flights pipeline: `enrich` runs in a process of its own, the reduce inside Spark."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence

import millstream_udf as udf
from millstream_udf import Message, Record, Window

AIRLINES = {
    "9E": "Endeavor Air",
    "AA": "American Airlines",
    "AS": "Alaska Airlines",
    "B6": "JetBlue Airways",
    "DL": "Delta Air Lines",
    "EV": "ExpressJet Airlines",
    "F9": "Frontier Airlines",
    "FL": "AirTran Airways",
    "HA": "Hawaiian Airlines",
    "MQ": "Envoy Air",
    "OO": "SkyWest Airlines",
    "UA": "United Air Lines",
    "US": "US Airways",
    "VX": "Virgin America",
    "WN": "Southwest Airlines",
    "YV": "Mesa Airlines",
}

LATE_MINUTES = 60
"""A flight is late when it leaves more than this after its scheduled time."""


@udf.map
def enrich(record: Record) -> list[Message]:
    """Give numbers their types, name the airline, and class the delay: once for the carrier, once for the plane.

    Some flights do not say which plane.
    """
    raw = json.loads(record.value)
    delay = int(raw["dep_delay"]) if raw["dep_delay"] else None
    delay_class = classify(delay)
    flight = {
        "carrier": raw["carrier"],
        "airline": AIRLINES.get(raw["carrier"], raw["carrier"]),
        "flight": raw["carrier"] + raw["flight"],
        "tailnum": raw["tailnum"] or None,
        "origin": raw["origin"],
        "dest": raw["dest"],
        "scheduled": raw["time_hour"],
        "delay_class": delay_class,
        "dep_delay": delay,
        "distance": int(raw["distance"]),
    }
    value = json.dumps(flight)
    messages = [Message(value, keys=[raw["carrier"]], tags=[delay_class])]
    if raw["tailnum"]:
        messages.append(Message(value, keys=[raw["tailnum"]], tags=["plane"]))
    return messages


def classify(delay: int | None) -> str:
    """`cancelled`, `late`, `delayed` (over a quarter of an hour) or `on time`; `delay` in minutes."""
    if delay is None:
        return "cancelled"
    if delay > LATE_MINUTES:
        return "late"
    return "delayed" if delay > 15 else "on time"


@udf.reduce
def plane_day(keys: Sequence[str], records: Iterable[Record], window: Window) -> str:
    """What a plane did between two rests."""
    flights = [json.loads(record.value) for record in records]
    delays = [flight["dep_delay"] for flight in flights if flight["dep_delay"] is not None]
    day = {
        "tailnum": keys[0],
        "start": window.start.isoformat(),
        "end": window.end.isoformat(),
        "flights": len(flights),
        "miles": sum(flight["distance"] for flight in flights),
        "minutes_late": sum(delay for delay in delays if delay > 0),
    }
    return json.dumps(day)
