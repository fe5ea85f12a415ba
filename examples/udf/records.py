import millstream_udf as udf


@udf.map
def process(record: udf.Record, context: udf.Context) -> udf.Record | None:
    if context.watermark and record.event_time < context.watermark:
        context.logger.warning("late by %s", context.watermark - record.event_time)
    return record if "gold" in record.keys else None
