"""The functions of the flights pipeline. The reduce runs inside Spark, each of the others in a process of its own."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from datetime import datetime

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


@udf.source_transform
def schedule(record: Record) -> Message:
    """Key a flight by its carrier, and date it by its scheduled hour."""
    flight = json.loads(record.value)
    return Message(record.value, keys=[flight["carrier"]], event_time=datetime.fromisoformat(flight["time_hour"]))


@udf.map
def enrich(record: Record) -> Message:
    """Give numbers their types, name the airline, and class the delay."""
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
    return Message(json.dumps(flight), tags=[delay_class])


def classify(delay: int | None) -> str:
    """`cancelled`, `late`, `delayed` (over a quarter of an hour) or `on time`; `delay` in minutes."""
    if delay is None:
        return "cancelled"
    if delay > LATE_MINUTES:
        return "late"
    return "delayed" if delay > 15 else "on time"


@udf.map
def by_plane(record: Record) -> Message | None:
    """Key a flight by the plane that flew it; some flights do not say which."""
    tailnum = json.loads(record.value)["tailnum"]
    return Message(record.value, keys=[tailnum]) if tailnum else None


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
