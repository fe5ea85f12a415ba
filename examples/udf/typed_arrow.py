import pyarrow as pa
import pyarrow.compute as pc

import millstream_udf as udf

FIELDS: dict[str, pa.DataType] = {"sensor": pa.string(), "celsius": pa.float64()}


@udf.map(arrow=True, schema=pa.schema(FIELDS))
def process(batch: pa.RecordBatch) -> pa.RecordBatch:
    fahrenheit = pc.add(pc.multiply(batch["celsius"], 1.8), 32.0)
    return batch.append_column("fahrenheit", fahrenheit).filter(pc.field("celsius") > -50.0)
