import pyarrow as pa
import pyarrow.compute as pc

import millstream_udf as udf


@udf.map(arrow=True)
def process(batch: pa.RecordBatch) -> pa.RecordBatch:
    kept = batch.filter(pc.field("value") != pa.scalar(b""))
    return kept.set_column(0, "value", pc.utf8_upper(kept["value"].cast(pa.string())))
