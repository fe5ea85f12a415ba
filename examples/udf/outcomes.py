import json

import millstream_udf as udf


def process(value: bytes) -> bytes:
    try:
        reading = json.loads(value)
    except ValueError as error:
        raise udf.DeadLetter(f"not JSON: {error}") from None
    if reading["sensor"] == "test":
        raise udf.Drop("test sensor")
    if reading["status"] == "warming up":
        raise udf.Retry(0.5)
    return str(reading["celsius"]).encode()  # a KeyError fails this record, and no other
