import json
from datetime import datetime

import millstream_udf as udf


@udf.source_transform
def process(value: bytes) -> udf.Message:
    flight = json.loads(value)
    return udf.Message(value, keys=[flight["carrier"]], event_time=datetime.fromisoformat(flight["scheduled"]))
