import json

import millstream_udf as udf


def process(value: bytes) -> bytes | list[udf.Message] | None:
    order = json.loads(value)
    if order["cancelled"]:
        return None  # filtered: nothing goes on
    if not order["lines"]:
        return b"empty"  # one output, with the record's own keys and headers
    return [  # one output for each line
        udf.Message(
            json.dumps(line),
            keys=[line["item"]],  # decides the partition
            tags=["large"] if line["pieces"] > 100 else ["small"],  # for the conditions of edges
            headers={"order": str(order["id"]).encode()},
        )
        for line in order["lines"]
    ]
