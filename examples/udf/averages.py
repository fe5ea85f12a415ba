import json
from collections.abc import Iterable

import millstream_udf as udf


def process(keys: tuple[str, ...], records: Iterable[udf.Record], window: udf.Window) -> udf.Message:
    celsius = [float(record.value) for record in records]
    average = {"sensor": keys[0], "hour": window.start.isoformat(), "celsius": sum(celsius) / len(celsius)}
    return udf.Message(json.dumps(average), tags=["hot"] if max(celsius) > 40 else [])
