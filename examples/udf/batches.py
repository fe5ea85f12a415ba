import millstream_udf as udf


@udf.map(batch=True)
def process(records: list[udf.Record]) -> list[bytes | Exception | None]:
    longest = max(len(record.value) for record in records)
    return [
        udf.Drop("empty") if not record.value else record.value.rjust(longest)  # an exception is that record's outcome
        for record in records
    ]
