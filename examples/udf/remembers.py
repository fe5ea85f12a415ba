import json

import millstream_udf as udf


def process(value: bytes, state: udf.State) -> str:
    reading = json.loads(value)
    before = state.get("celsius")
    state["celsius"] = reading["celsius"]
    number = state.incr_counter("readings")
    return f"{number}: from {before} to {reading['celsius']}"
