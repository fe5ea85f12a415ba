"""PyFlink: a keyed process function between files."""

import sys
from collections.abc import Iterator

from pyflink.common import Configuration, Encoder, Types, WatermarkStrategy  # type: ignore[import-not-found]
from pyflink.datastream import (  # type: ignore[import-not-found]
    KeyedProcessFunction,
    RuntimeContext,
    StreamExecutionEnvironment,
)
from pyflink.datastream.connectors.file_system import (  # type: ignore[import-not-found]
    FileSink,
    FileSource,
    StreamFormat,
)
from pyflink.datastream.state import ValueStateDescriptor  # type: ignore[import-not-found]
from state_jobs.counting import KEY, advance, begin


class Count(KeyedProcessFunction):  # type: ignore[misc]
    """Counts the records of a key."""

    def open(self, runtime_context: RuntimeContext) -> None:
        self._last = runtime_context.get_state(ValueStateDescriptor("last", Types.STRING()))

    def process_element(self, value: str, ctx: KeyedProcessFunction.Context) -> Iterator[str]:
        begin()
        after = advance(self._last.value(), value)
        self._last.update(after)
        yield after


def main() -> None:
    source, target, checkpoints, backend, interval_ms = sys.argv[1:]
    configuration = Configuration()
    for name, value in {
        "parallelism.default": "2",
        "state.backend.type": backend,
        "execution.checkpointing.incremental": "true",
        "execution.checkpointing.externalized-checkpoint-retention": "RETAIN_ON_CANCELLATION",
        "execution.checkpointing.dir": f"file://{checkpoints}",
        "execution.checkpointing.interval": f"{interval_ms} ms",
        # In the JVM's process, as Flink recommends for speed; in one of its own, state is reached by remote calls.
        "python.execution-mode": "thread",
    }.items():
        configuration.set_string(name, value)
    env = StreamExecutionEnvironment.get_execution_environment(configuration)
    files = FileSource.for_record_stream_format(StreamFormat.text_line_format(), source).build()
    lines = env.from_source(files, WatermarkStrategy.no_watermarks(), "in", Types.STRING())
    counted = lines.key_by(lambda line: line[KEY], Types.STRING()).process(Count(), Types.STRING())
    counted.sink_to(FileSink.for_row_format(target, Encoder.simple_string_encoder()).build())
    env.execute()


main()
