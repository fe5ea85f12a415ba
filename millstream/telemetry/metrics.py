"""Metrics: the table of all metrics, and how they are read from a vertex's statistics.

Above it: `Telemetry`, and docs/telemetry.md, which a test compares with the table. Below it: `VertexStatistics`, the
single source of numbers, which the screen and tests read, too. A metric that Numaflow also has uses Numaflow's name;
its histograms are in microseconds. The module does not depend on how metrics leave the process.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from enum import Enum
from typing import TypeVar

from opentelemetry.metrics import CallbackOptions, Meter, Observation

from millstream.clock import END_OF_TIME_US, MICROSECONDS, START_OF_TIME_US, Clock
from millstream.statistics import (
    BufferStatistics,
    LaneReport,
    LaneStatistics,
    ReduceStatistics,
    SidecarStatistics,
    VertexStatistics,
)
from millstream.telemetry.function_metrics import FunctionInstruments
from millstream.telemetry.histograms import Histogram, HistogramDescription, Histograms

_SECONDS = (
    *(0.001, 0.002, 0.003, 0.005, 0.0075, 0.01, 0.015, 0.02, 0.03, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.5, 0.75),
    *(1.0, 2.0, 3.0, 5.0, 7.5, 10.0, 20.0, 30.0, 60.0, 120.0, 300.0, 600.0),
)
LATENCY_BOUNDS_S = (
    *(bound for bound in _SECONDS if bound < 0.005),
    *(0.004, 0.005, 0.006, 0.007, 0.0075, 0.008, 0.009, 0.01, 0.011, 0.012, 0.013, 0.014, 0.015, 0.0175),
    *(bound for bound in _SECONDS if bound > 0.015),
)
"""Bucket bounds of the end-to-end latency: 1 ms to 10 min, each at most two and a half times the previous one. They are
finer in the range of latencies at low rates."""
CLOSE_BOUNDS_S = (
    *(bound for bound in _SECONDS if bound < 0.05),
    *(0.05, 0.06, 0.07, 0.08, 0.09, 0.1, 0.11, 0.12, 0.13, 0.14, 0.15, 0.16, 0.17, 0.18, 0.19, 0.2, 0.22, 0.25, 0.28),
    *(0.3, 0.33, 0.36, 0.4, 0.45, 0.5, 0.55, 0.6, 0.65, 0.7, 0.75, 0.8, 0.9),
    *(bound for bound in _SECONDS if bound >= 1.0),
)
"""Bucket bounds of the time from closing windows to their commit. They are finer in its usual range, at most a fifth
apart: a reduce is judged by the quantiles of this time, and within a bucket a quantile is only an estimate."""
LOOP_LAG_BOUNDS_S = tuple(bound for bound in _SECONDS if bound <= 20.0)
"""Bucket bounds of the event loop's lag: from 1 ms to more than the longest time that a worker may be stopped."""
PROCESSING_BOUNDS_US = tuple(round(bound * MICROSECONDS) for bound in (0.0001, 0.0002, 0.0005, *_SECONDS))
"""Bucket bounds of processing times: 100 µs to 10 min."""


class MetricKind(Enum):
    """The kind of a metric, as Prometheus knows it."""

    COUNTER = "counter"
    GAUGE = "gauge"
    HISTOGRAM = "histogram"


_T = TypeVar("_T")

Labels = Mapping[str, str]
Reading = Iterator[tuple[float, Labels]]


@dataclass(frozen=True, slots=True)
class Metric:
    """One row of the table."""

    name: str
    kind: MetricKind
    labels: tuple[str, ...]
    """Labels in addition to `COMMON_LABELS`."""
    description: str
    read: Callable[[VertexStatistics, int], Reading] | None = None
    """Reads values with their labels from the statistics and the wall clock; None for a metric that is observed as it
    happens."""


COMMON_LABELS = ("pipeline", "vertex", "vertex_type", "replica")
"""Labels of every metric. `vertex_type`: source, map, reduce, sink, or the name of another package's kind of vertex."""

_LANE = "partition_name"


def _each(
    rows: Callable[[VertexStatistics], Iterable[tuple[_T, Labels]]], read: Callable[[_T], float | None]
) -> Callable[[VertexStatistics, int], Reading]:
    """One value for each row that has one, with the labels of the row."""

    def reading(statistics: VertexStatistics, now_us: int) -> Reading:
        for row, labels in rows(statistics):
            value = read(row)
            if value is not None:
                yield value, labels

    return reading


def _lanes(
    read: Callable[[LaneStatistics], float | None], report: LaneReport | None = None, role: str | None = None
) -> Callable[[VertexStatistics, int], Reading]:
    """Of lanes; for all kinds of vertex, or only for those whose lanes have that report, or that have that sidecar."""

    def rows(statistics: VertexStatistics) -> Iterator[tuple[LaneStatistics, Labels]]:
        if report in (None, *statistics.reports) and role in (None, *statistics.sidecars):
            for lane in statistics.lanes:
                yield lane, {_LANE: lane.lane.key}

    return _each(rows, read)


def _windows(read: Callable[[ReduceStatistics], float | None]) -> Callable[[VertexStatistics, int], Reading]:
    return _lanes(lambda lane: read(lane.reduce) if lane.reduce is not None else None)


def _buffers(
    read: Callable[[BufferStatistics], float], label: str = _LANE
) -> Callable[[VertexStatistics, int], Reading]:
    return _each(lambda statistics: [(one, {label: one.buffer.key}) for one in statistics.buffers], read)


def _sidecars(read: Callable[[SidecarStatistics], float]) -> Callable[[VertexStatistics, int], Reading]:
    return _each(lambda statistics: [(one, {"role": role}) for role, one in statistics.sidecars.items()], read)


def _vertex(read: Callable[[VertexStatistics], float]) -> Callable[[VertexStatistics, int], Reading]:
    return _each(lambda statistics: [(statistics, {})], read)


def _transformer(read: Callable[[LaneStatistics], float]) -> Callable[[VertexStatistics, int], Reading]:
    return _lanes(read, LaneReport.INTAKE, "transformer")


def _written_records(statistics: VertexStatistics, now_us: int) -> Reading:
    """Records written to buffers; for a sink, to its target."""
    yield from _buffers(lambda buffer: buffer.written_records)(statistics, now_us)
    yield from _lanes(lambda lane: lane.processed - lane.fallback, LaneReport.TARGET)(statistics, now_us)


def _drops(statistics: VertexStatistics, now_us: int) -> Reading:
    for lane in statistics.lanes:
        reasons = dict(lane.dropped)
        for reason, count in (("buffer-full", lane.discarded), ("forwarding-rules-not-met", lane.unrouted)):
            if count:
                reasons[reason] = reasons.get(reason, 0) + count
        for reason, count in reasons.items():
            yield count, {_LANE: lane.lane.key, "reason": reason}


def _refused(statistics: VertexStatistics, now_us: int) -> Reading:
    for lane in statistics.lanes:
        for reason, count in (lane.listener.refused if lane.listener is not None else {}).items():
            yield count, {_LANE: lane.lane.key, "reason": reason}


def _watermark_lag(statistics: VertexStatistics, now_us: int) -> Reading:
    for lane in statistics.lanes:
        if START_OF_TIME_US < lane.watermark_us < END_OF_TIME_US:
            yield (now_us - lane.watermark_us) / MICROSECONDS, {_LANE: lane.lane.key}


def _oldest_window_lag(statistics: VertexStatistics, now_us: int) -> Reading:
    yield from _windows(lambda n: None if n.oldest_end_us is None else (now_us - n.oldest_end_us) / MICROSECONDS)(
        statistics, now_us
    )


_COUNTER, _GAUGE, _HISTOGRAM = MetricKind.COUNTER, MetricKind.GAUGE, MetricKind.HISTOGRAM

UDF_TIME = "forwarder_udf_processing_time"
TRANSFORMER_TIME = "source_forwarder_transformer_processing_time"
REDUCE_TIME = "millstream_hand_over_processing_time"
CLOSE_TIME = "millstream_close_to_commit_seconds"
WRITE_TIME = "forwarder_write_processing_time"
COMMIT_TIME = "millstream_commit_seconds"
LATENCY = "millstream_end_to_end_latency_seconds"
LATENCY_SUM = "millstream_end_to_end_record_seconds_total"
LATENCY_COUNT = "millstream_end_to_end_records_total"
LOOP_LAG = "millstream_event_loop_lag_seconds"

METRICS: tuple[Metric, ...] = (
    Metric("forwarder_read_total", _COUNTER, (_LANE,), "Records read and done with.", _lanes(lambda n: n.inputs)),
    Metric("forwarder_data_read_total", _COUNTER, (_LANE,), "The same; all are data.", _lanes(lambda n: n.inputs)),
    Metric(
        "forwarder_read_bytes_total",
        _COUNTER,
        (_LANE,),
        "Their bytes, as they were stored.",
        _lanes(lambda n: n.input_bytes),
    ),
    Metric("forwarder_data_read_bytes_total", _COUNTER, (_LANE,), "The same.", _lanes(lambda n: n.input_bytes)),
    Metric("forwarder_ack_total", _COUNTER, (_LANE,), "Records whose commit is durable.", _lanes(lambda n: n.inputs)),
    Metric("forwarder_write_total", _COUNTER, (_LANE,), "Records written, by buffer or sink lane.", _written_records),
    Metric(
        "forwarder_write_bytes_total",
        _COUNTER,
        (_LANE,),
        "Bytes written, by buffer, as they are stored.",
        _buffers(lambda b: b.written_bytes),
    ),
    Metric(
        "forwarder_drop_total",
        _COUNTER,
        (_LANE, "reason"),
        "Records left out: inputs by the reason given, outputs under buffer-full and forwarding-rules-not-met.",
        _drops,
    ),
    Metric(
        "forwarder_ud_drop_total",
        _COUNTER,
        (_LANE,),
        "Inputs the function answered with no output.",
        _lanes(lambda n: n.filtered, LaneReport.FUNCTION),
    ),
    Metric(
        "forwarder_udf_read_total",
        _COUNTER,
        (_LANE,),
        "Given to the function.",
        _lanes(lambda n: n.inputs, LaneReport.FUNCTION),
    ),
    Metric(
        "forwarder_udf_write_total",
        _COUNTER,
        (_LANE,),
        "Its outputs.",
        _lanes(lambda n: n.outputs, LaneReport.FUNCTION),
    ),
    Metric(
        "forwarder_udf_error_total",
        _COUNTER,
        (_LANE,),
        "Its errors.",
        _lanes(lambda n: n.udf_errors, LaneReport.FUNCTION),
    ),
    Metric(
        "source_forwarder_transformer_read_total",
        _COUNTER,
        (_LANE,),
        "Given to the source's transformer.",
        _transformer(lambda n: n.inputs),
    ),
    Metric(
        "source_forwarder_transformer_write_total",
        _COUNTER,
        (_LANE,),
        "Its outputs.",
        _transformer(lambda n: n.outputs),
    ),
    Metric(
        "source_forwarder_transformer_drop_total",
        _COUNTER,
        (_LANE,),
        "Inputs it answered with no output.",
        _transformer(lambda n: n.filtered),
    ),
    Metric(
        "source_forwarder_transformer_error_total",
        _COUNTER,
        (_LANE,),
        "Its errors.",
        _transformer(lambda n: n.udf_errors),
    ),
    Metric(
        "forwarder_fbsink_write_total",
        _COUNTER,
        (_LANE,),
        "Records handed to the fallback sink.",
        _lanes(lambda n: n.fallback, LaneReport.TARGET),
    ),
    Metric(
        "vertex_pending_messages_raw",
        _GAUGE,
        (_LANE,),
        "Records that wait, in the lane's buffer or at its source; absent where that is unknown.",
        _lanes(lambda n: n.pending),
    ),
    Metric(
        "millstream_source_pending_bytes",
        _GAUGE,
        (_LANE,),
        "Bytes that wait at a source of files, of objects or of a server's log (`cdc`); absent where that is unknown.",
        _lanes(lambda n: n.pending_bytes),
    ),
    Metric(
        "millstream_source_pending_versions",
        _GAUGE,
        (_LANE,),
        "Versions of a Delta table, or snapshots of an Iceberg table, that are not read; absent where that is unknown.",
        _lanes(lambda n: n.pending_versions),
    ),
    Metric(
        "isb_jetstream_buffer_soft_usage",
        _GAUGE,
        ("buffer",),
        "Records that wait, as a share of bufferMaxLength.",
        _buffers(lambda b: b.records / max(1, b.records_max), "buffer"),
    ),
    Metric(
        "isb_jetstream_buffer_solid_usage",
        _GAUGE,
        ("buffer",),
        "Bytes that wait, as a share of bufferMaxBytes.",
        _buffers(lambda b: b.bytes / max(1, b.bytes_max), "buffer"),
    ),
    Metric(
        "isb_jetstream_buffer_pending",
        _GAUGE,
        ("buffer",),
        "Records that wait in the buffer.",
        _buffers(lambda b: b.records, "buffer"),
    ),
    Metric(UDF_TIME, _HISTOGRAM, (), "One call of the function, microseconds."),
    Metric(TRANSFORMER_TIME, _HISTOGRAM, (), "One call of the source's transformer, microseconds."),
    Metric(WRITE_TIME, _HISTOGRAM, (), "One write to the buffers (a commit) or to the sink, microseconds."),
    Metric(
        "millstream_dead_lettered_total",
        _COUNTER,
        (_LANE,),
        "Inputs that went to the dead-letter edge.",
        _lanes(lambda n: n.dead_lettered),
    ),
    Metric("millstream_late_total", _COUNTER, (_LANE,), "Inputs older than the watermark.", _lanes(lambda n: n.late)),
    Metric(
        "millstream_repeated_ids_total",
        _COUNTER,
        (_LANE,),
        "Records left out because their id was committed before.",
        _lanes(lambda n: n.repeated_ids, LaneReport.INTAKE),
    ),
    Metric("millstream_http_connections", _GAUGE, (_LANE,), "Connected senders.", _lanes(lambda n: n.connections)),
    Metric(
        "millstream_http_refused_total",
        _COUNTER,
        (_LANE, "reason"),
        "Connections and requests that a source has refused; `reason`: the status, or what came before one.",
        _refused,
    ),
    Metric(
        "millstream_diverted_total",
        _COUNTER,
        (_LANE,),
        "Inputs sent to a late edge.",
        _lanes(lambda n: n.diverted, LaneReport.WINDOWS),
    ),
    Metric(
        "millstream_windows_open",
        _GAUGE,
        (_LANE,),
        "Windows that hold records and are not closed.",
        _windows(lambda n: n.open_windows),
    ),
    Metric(
        "millstream_window_records",
        _GAUGE,
        (_LANE,),
        "Records in the log that they need.",
        _windows(lambda n: n.open_records),
    ),
    Metric(
        "millstream_window_oldest_seconds",
        _GAUGE,
        (_LANE,),
        "Wall clock less the end of the open window that ends first; absent when none is open.",
        _oldest_window_lag,
    ),
    Metric(
        "millstream_hand_overs_pending",
        _GAUGE,
        (_LANE,),
        "Hand-overs whose results are not committed.",
        _windows(lambda n: n.pending_hand_overs),
    ),
    Metric("millstream_hand_overs_total", _COUNTER, (_LANE,), "Hand-overs computed.", _windows(lambda n: n.hand_overs)),
    Metric(
        "millstream_hand_over_windows_total",
        _COUNTER,
        (_LANE,),
        "Windows in them.",
        _windows(lambda n: n.hand_over_windows),
    ),
    Metric(
        "millstream_hand_over_records_total",
        _COUNTER,
        (_LANE,),
        "Records in them.",
        _windows(lambda n: n.hand_over_records),
    ),
    Metric(
        "millstream_job_seconds_total",
        _COUNTER,
        (_LANE,),
        "Time of their Spark jobs.",
        _windows(lambda n: n.job_seconds),
    ),
    Metric("millstream_log_bytes", _GAUGE, (_LANE,), "Bytes of the lane's log.", _windows(lambda n: n.log_bytes)),
    Metric(
        "millstream_log_usage",
        _GAUGE,
        (_LANE,),
        "The same, as a share of what it may have.",
        _windows(lambda n: n.log_bytes / n.log_bytes_max),
    ),
    Metric("millstream_log_segments", _GAUGE, (_LANE,), "Its segments.", _windows(lambda n: n.log_segments)),
    Metric(
        "millstream_log_written_bytes_total",
        _COUNTER,
        (_LANE,),
        "Bytes written to it.",
        _windows(lambda n: n.log_written_bytes),
    ),
    Metric("millstream_log_syncs_total", _COUNTER, (_LANE,), "Its fsyncs.", _windows(lambda n: n.syncs)),
    Metric(
        "millstream_log_sync_seconds_total", _COUNTER, (_LANE,), "Time they took.", _windows(lambda n: n.sync_seconds)
    ),
    Metric(CLOSE_TIME, _HISTOGRAM, (), "From the watermark closing windows to the commit of their results; seconds."),
    Metric(REDUCE_TIME, _HISTOGRAM, (), "One hand-over, from its being durable to its results, microseconds."),
    Metric("millstream_retries_total", _COUNTER, (_LANE,), "Attempts after the first.", _lanes(lambda n: n.retries)),
    Metric(
        "millstream_state_reads_total",
        _COUNTER,
        (_LANE,),
        "Reads of lazy states by the function.",
        _lanes(lambda n: n.state_reads, LaneReport.FUNCTION),
    ),
    Metric(
        "millstream_frames_in_flight",
        _GAUGE,
        (_LANE,),
        "Frames read and not committed.",
        _lanes(lambda n: n.frames_in_flight),
    ),
    Metric("millstream_records_in_flight", _GAUGE, (_LANE,), "Their records.", _lanes(lambda n: n.records_in_flight)),
    Metric("millstream_bytes_in_flight", _GAUGE, (_LANE,), "Their bytes.", _lanes(lambda n: n.bytes_in_flight)),
    Metric(
        "millstream_watermark_lag_seconds",
        _GAUGE,
        (_LANE,),
        "Wall clock less the lane's watermark; absent before its first promise and after its end.",
        _watermark_lag,
    ),
    Metric("millstream_lane_idle", _GAUGE, (_LANE,), "1: the lane has nothing to read.", _lanes(lambda n: int(n.idle))),
    Metric("millstream_lane_ended", _GAUGE, (_LANE,), "1: nothing will follow.", _lanes(lambda n: int(n.ended))),
    Metric(
        "millstream_buffer_full",
        _GAUGE,
        ("buffer",),
        "1: the writer waits, or discards, because of this buffer.",
        _buffers(lambda b: int(b.full), "buffer"),
    ),
    Metric("millstream_commits_total", _COUNTER, (), "Atomic batches stored.", _vertex(lambda v: v.commits)),
    Metric("millstream_commit_bytes_total", _COUNTER, (), "Their bytes.", _vertex(lambda v: v.commit_bytes)),
    Metric(COMMIT_TIME, _HISTOGRAM, (), "One commit, from sending to answer, with its waiting for room; seconds."),
    Metric(
        "millstream_answers_settled_total",
        _COUNTER,
        (),
        "Commits whose answer was lost and that the mark settled.",
        _vertex(lambda v: v.answers_settled),
    ),
    Metric(
        "millstream_read_restarts_total",
        _COUNTER,
        (),
        "Times a reader had to set its consumer up again.",
        _vertex(lambda v: v.read_restarts),
    ),
    Metric(
        "millstream_sidecar_running",
        _GAUGE,
        ("role",),
        "1: the process of the user's function runs.",
        _sidecars(lambda s: int(s.running)),
    ),
    Metric(
        "millstream_sidecar_restarts_total",
        _COUNTER,
        ("role",),
        "Times it was started again.",
        _sidecars(lambda s: s.restarts),
    ),
    Metric(
        "millstream_sidecar_oldest_call_seconds",
        _GAUGE,
        ("role",),
        "How long the oldest call to the user's function has had no answer; seconds, in steps of one.",
        _sidecars(lambda s: s.oldest_call_s),
    ),
    Metric(LATENCY, _HISTOGRAM, (), "From the source to the sink, once per frame, by its oldest record; seconds."),
    Metric(LATENCY_SUM, _COUNTER, (), "The same, summed over all records: with the next one, the mean per record."),
    Metric(LATENCY_COUNT, _COUNTER, (), "Records that reached a sink, as the latency above counts them."),
    Metric(
        LOOP_LAG,
        _HISTOGRAM,
        (),
        "How long what is ready waits for its turn on the worker's event loop, sampled twice a second; seconds.",
    ),
)

_DESCRIBED = {metric.name: metric.description for metric in METRICS}
_TIMES = tuple(
    HistogramDescription(name, _DESCRIBED[name], bounds)
    for name, bounds in (
        (UDF_TIME, PROCESSING_BOUNDS_US),
        (TRANSFORMER_TIME, PROCESSING_BOUNDS_US),
        (WRITE_TIME, PROCESSING_BOUNDS_US),
        (REDUCE_TIME, PROCESSING_BOUNDS_US),
        (COMMIT_TIME, LATENCY_BOUNDS_S),
        (CLOSE_TIME, CLOSE_BOUNDS_S),
        (LATENCY, LATENCY_BOUNDS_S),
        (LOOP_LAG, LOOP_LAG_BOUNDS_S),
    )
)
_STAGE_TIME = {"udf": UDF_TIME, "transformer": TRANSFORMER_TIME, "sink": WRITE_TIME, "reduce": REDUCE_TIME}


class VertexMetrics:
    """The numbers of one replica. Made by `Metrics`."""

    def __init__(
        self,
        statistics: Callable[[], VertexStatistics],
        labels: Labels,
        reports: Collection[LaneReport],
        times: Mapping[str, Sequence[Histogram]],
    ) -> None:
        """`labels`: the values of `COMMON_LABELS`. `times`: the replica's histograms by name, one for each reader."""
        self.labels = dict(labels)
        self.newest: VertexStatistics | None = None
        """The statistics that the next collection reports."""
        self.record_seconds = 0.0
        self.records = 0
        self._statistics = statistics
        self._times = times
        self._writes_are_commits = LaneReport.TARGET not in reports
        self._ended = False

    def refresh(self) -> None:
        """Gets the statistics that the next collection reports."""
        if not self._ended:
            self.newest = self._statistics()

    def end(self) -> None:
        """Called when the replica ends: its current numbers stay."""
        self.refresh()
        self._ended = True

    def observe_processing(self, stage: str, seconds: float) -> None:
        """Records how long a stage took for one frame (or slice, or batch)."""
        micros = seconds * MICROSECONDS
        if stage == "commit":
            self._observe(COMMIT_TIME, seconds)
            if self._writes_are_commits:
                self._observe(WRITE_TIME, micros)
        elif stage == "close":
            self._observe(CLOSE_TIME, seconds)
        elif (name := _STAGE_TIME.get(stage)) is not None:
            self._observe(name, micros)

    def observe_loop_lag(self, seconds: float) -> None:
        """Records how late the replica's event loop is."""
        if not self._ended:
            self._observe(LOOP_LAG, seconds)

    def observe_latency(self, seconds: float, records: int) -> None:
        """Records that a sink has written a frame whose oldest record entered the pipeline `seconds` ago."""
        # The clocks of several machines may differ by more than the latency of a fast pipeline.
        seconds = max(0.0, seconds)
        self._observe(LATENCY, seconds)
        self.record_seconds += seconds * records
        self.records += records

    def _observe(self, name: str, value: float) -> None:
        for histogram in self._times[name]:
            histogram.observe(value)


class Metrics:
    """The instruments of one process, over all its replicas."""

    def __init__(self, meter: Meter, clock: Clock, histograms: Sequence[Histograms]) -> None:
        """`histograms`: those of each reader."""
        self._meter = meter
        self._clock = clock
        self._histograms = histograms
        self._replicas: list[VertexMetrics] = []
        self._functions = FunctionInstruments(meter, histograms)

    def register(self) -> None:
        """Creates the instruments."""
        for metric in METRICS:
            if metric.read is None:
                continue
            make = (
                self._meter.create_observable_counter
                if metric.kind is MetricKind.COUNTER
                else self._meter.create_observable_gauge
            )
            make(metric.name, callbacks=[self._callback(metric.read)], description=metric.description)
        # A counter that is read costs one addition per frame; one that is recorded costs many times as much.
        totals: tuple[tuple[str, Callable[[VertexMetrics], float]], ...] = (
            (LATENCY_SUM, lambda replica: replica.record_seconds),
            (LATENCY_COUNT, lambda replica: replica.records),
        )
        for name, total in totals:
            self._meter.create_observable_counter(name, callbacks=[self._of_each(total)], description=_DESCRIBED[name])

    @contextmanager
    def replica(
        self, statistics: Callable[[], VertexStatistics], labels: Labels, reports: Collection[LaneReport]
    ) -> Iterator[VertexMetrics]:
        """The metrics of a replica. After the context has ended, its last numbers are reported until the process ends,
        including the final export."""
        times = {one.name: [reader.make(one, labels) for reader in self._histograms] for one in _TIMES}
        replica = VertexMetrics(statistics, labels, reports, times)
        self._replicas.append(replica)
        try:
            yield replica
        finally:
            replica.end()

    def observe_loop_lag(self, seconds: float) -> None:
        """Records the lag for all replicas, because they share the loop."""
        for replica in self._replicas:
            replica.observe_loop_lag(seconds)

    def refresh(self) -> None:
        """Gets the statistics that the next collection reports: once for all instruments, on the event loop."""
        for replica in self._replicas:
            replica.refresh()
        newest = [(replica.labels, replica.newest) for replica in self._replicas]
        self._functions.update((labels, one.functions) for labels, one in newest if one is not None)

    def _of_each(self, read: Callable[[VertexMetrics], float]) -> Callable[[CallbackOptions], Iterable[Observation]]:
        return lambda _: [Observation(read(replica), replica.labels) for replica in self._replicas]

    def _callback(
        self, read: Callable[[VertexStatistics, int], Reading]
    ) -> Callable[[CallbackOptions], Iterable[Observation]]:
        def observe(_: CallbackOptions) -> Iterable[Observation]:
            now_us = self._clock.now_us()
            return [
                Observation(value, {**replica.labels, **own})
                for replica in self._replicas
                if replica.newest is not None
                for value, own in read(replica.newest, now_us)
            ]

        return observe
