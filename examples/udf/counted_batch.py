from collections.abc import Sequence

import millstream_udf as udf


@udf.map(batch=True)
def process(records: list[udf.Record], states: Sequence[udf.State]) -> list[str]:
    # states[i] is what is remembered for the key of records[i].
    return [str(state.incr_counter("seen")) for state in states]
