import pyarrow as pa
import pyarrow.compute as pc

import millstream_udf as udf

FIELDS: dict[str, pa.DataType] = {"origin": pa.string(), "delay": pa.float64()}


@udf.reduce(arrow=True, schema=pa.schema(FIELDS))
def process(table: pa.Table) -> pa.Table:
    late = table.filter(pc.field("delay") > 0).group_by("origin")
    return late.aggregate([("delay", "count"), ("delay", "mean"), ("delay", "max")])  # each row becomes JSON
