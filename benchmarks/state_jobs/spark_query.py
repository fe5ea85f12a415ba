"""Spark Structured Streaming: transformWithState between files, a micro-batch for each file."""

import sys
from collections.abc import Iterator

from pyspark.sql import Row, SparkSession, functions
from pyspark.sql.streaming.stateful_processor import StatefulProcessor, StatefulProcessorHandle
from state_jobs.counting import KEY, advance, begin


class Count(StatefulProcessor):
    """Counts the records of a key. It gets all records of a key in a batch at once, so it reads and writes once."""

    def init(self, handle: StatefulProcessorHandle) -> None:
        self._last = handle.getValueState("last", "last STRING")

    def handleInputRows(self, key: tuple[str], rows: Iterator[Row], timerValues: object) -> Iterator[Row]:
        begin()
        found = self._last.get()
        last = found[0] if found else None
        for row in rows:
            last = advance(last, row.value)
            yield Row(value=last)
        self._last.update((last,))

    def close(self) -> None:
        """Nothing is open."""


def main() -> None:
    parts, target, checkpoint, files = sys.argv[1:]
    store = "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"
    builder = SparkSession.builder.master("local[2]")
    for name, value in {
        "spark.ui.enabled": "false",
        "spark.sql.shuffle.partitions": "2",
        "spark.sql.streaming.stateStore.providerClass": store,
        "spark.sql.streaming.stateStore.rocksdb.changelogCheckpointing.enabled": "true",
    }.items():
        builder = builder.config(name, value)
    spark = builder.getOrCreate()
    spark.sparkContext.setLogLevel("ERROR")
    lines = spark.readStream.format("text").option("maxFilesPerTrigger", int(files)).load(parts)
    keyed = lines.select(functions.substring("value", KEY.start + 1, KEY.stop - KEY.start).alias("key"), "value")
    counted = keyed.groupBy("key").transformWithState(Count(), "value STRING", "Append", "None")
    writer = counted.writeStream.format("text").option("path", target).option("checkpointLocation", checkpoint)
    writer.outputMode("append").trigger(availableNow=True).start().awaitTermination()
    spark.stop()


main()
