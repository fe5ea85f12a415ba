"""`millstream bench`: how fast a real pipeline is on this machine, and what share of the broker's limit it reaches."""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Coroutine
from dataclasses import replace
from pathlib import Path
from typing import Any

import uvloop

from millstream import codes
from millstream.buffers.registry import technology
from millstream.compression import Compression
from millstream.errors import UserError
from millstream.ledger.protocol import DurabilityLevel
from millstream_runner.bench.running import Load, Measurement, measure_map
from millstream_runner.cli.answer import answer
from millstream_runner.local.formatting import aligned

_MIB = 1024 * 1024
_WARM_UP_S = 2.0
_FUNCTIONS = {
    "builtin": "built-in",
    "python": "Python, identity",
    "remembering": "Python, remembers the last value of each key",
}
_RAW_RECORD_BYTES_MAX = 400 * _MIB
"""The raw limit is measured over as many bytes as the pipeline stores, up to this many."""
_RAW_RECORD_BYTES_MIN = 100 * _MIB
"""And over at least this many, so that the measurement takes long enough to be meaningful."""


def run(arguments: argparse.Namespace) -> int:
    with tempfile.TemporaryDirectory(prefix="millstream-bench-") as name:
        directory = Path(name)
        if arguments.action == "reduce":
            result = uvloop.run(_measure_reduce(directory, arguments))
            lines = _reduce_lines(result)
        else:
            result = uvloop.run(_measure(arguments, directory, _load(arguments)))
            lines = _lines(result)
    answer(arguments, result, lines)
    return 0


def _check_positive(arguments: argparse.Namespace, *options: str) -> None:
    for name in options:
        if getattr(arguments, name.replace("-", "_")) < 1:
            raise UserError(codes.OPTION_VALUE, f"--{name} {getattr(arguments, name)}: must be at least 1")


def _load(arguments: argparse.Namespace) -> Load:
    counts = ("records", "partitions") if arguments.action == "map" else ("rate", "seconds")
    _check_positive(arguments, *counts, "size", "chain")
    if arguments.keys < 0:
        raise UserError(codes.OPTION_VALUE, f"--keys {arguments.keys}: must not be negative")
    if arguments.state and (arguments.builtin or not arguments.keys):
        what = "--state: a function remembers something for each key; add --keys, and remove --builtin"
        raise UserError(codes.OPTIONS_CONFLICT, what)
    common = Load(
        records=0,
        record_bytes=arguments.size,
        chain=arguments.chain,
        from_source=arguments.from_source,
        unbuffered=arguments.unbuffered,
        builtin=arguments.builtin,
        keys=arguments.keys,
        remembers=arguments.state,
        compression=Compression(arguments.compression),
    )
    if arguments.action == "map":
        if (arguments.unbuffered or arguments.from_source) and arguments.partitions > 1:
            option = "--unbuffered" if arguments.unbuffered else "--from-source"
            what = f"{option} --partitions: a record stays in its partition inside a chain, so there is only one"
            raise UserError(codes.OPTION_VALUE, what)
        return replace(common, records=arguments.records, partitions=arguments.partitions)
    records = round(arguments.rate * (arguments.seconds + _WARM_UP_S))
    return replace(common, records=records, rate=arguments.rate, warm_up_s=_WARM_UP_S)


async def _measure(arguments: argparse.Namespace, directory: Path, load: Load) -> dict[str, Any]:
    durability = DurabilityLevel(arguments.durability)
    (directory / "pipeline").mkdir()
    measured = await measure_map(directory / "pipeline", load, durability, arguments.ledger, workers=arguments.workers)
    encrypted = None
    if arguments.tls:
        (directory / "encrypted").mkdir()
        encrypted = await measure_map(
            directory / "encrypted", load, durability, arguments.ledger, tls=True, workers=arguments.workers
        )
    size = min(_RAW_RECORD_BYTES_MAX, max(_RAW_RECORD_BYTES_MIN, load.records * load.record_bytes))
    raw_per_s = await technology(arguments.ledger).raw_limit(
        directory / "raw",
        records=-(-size // load.record_bytes),
        record_bytes=load.record_bytes,
        fsync=durability is DurabilityLevel.FSYNC,
    )
    result = _result(arguments.action, load, measured, arguments.ledger, raw_per_s)
    if encrypted is None:
        return result
    return {**result, "tls": _result(arguments.action, load, encrypted, arguments.ledger, raw_per_s)}


def _result(bench: str, load: Load, measured: Measurement, ledger: str, raw_per_s: float) -> dict[str, Any]:
    return {
        "bench": bench,
        "ledger": ledger,
        "records": load.records,
        "record_bytes": load.record_bytes,
        "keys": load.keys,
        "partitions": load.partitions,
        "chain": load.chain,
        "elapsed_s": round(measured.elapsed_s, 3),
        "records_per_s": round(measured.records_per_s),
        "raw_limit_records_per_s": round(raw_per_s),
        "share_of_limit": round(measured.records_per_s / raw_per_s, 4),
        "compression": load.compression.value,
        "stored_times": 0 if load.unbuffered else 1 if load.from_source else 2,
        "function": "builtin" if load.builtin else "remembering" if load.remembers else "python",
        "latency_ms": {"p50": _milliseconds(measured, 0.5), "p99": _milliseconds(measured, 0.99)},
        "latency_frames": measured.latency.total,
        "durability": measured.durability,
        "processes": {
            name: {
                "cpu_s": round(use.cpu_s, 2),
                "cpu_share": round(use.cpu_s / measured.elapsed_s, 3) if measured.elapsed_s else None,
                "rss_mib_max": round(use.rss_bytes_max / _MIB, 1),
                "pss_mib_max": round(use.pss_bytes_max / _MIB, 1),
            }
            for name, use in sorted(measured.use.items())
        },
    }


def _memory(use: dict[str, Any]) -> tuple[str, str]:
    return f"{use['rss_mib_max']:.0f}", f"{use['pss_mib_max']:.0f}"


def _milliseconds(measured: Measurement, share: float) -> float | None:
    seconds = measured.latency.quantile_s(share)
    return None if seconds is None else round(seconds * 1000, 2)


def _lines(result: dict[str, Any]) -> list[str]:
    rate, size = result["records_per_s"], result["record_bytes"]
    latency = {name: "not seen" if ms is None else f"{ms} ms" for name, ms in result["latency_ms"].items()}
    rows = [("PROCESS (with its functions)", "CPU s", "CPU", "RSS MiB", "PSS MiB")]
    rows += [
        (name, f"{use['cpu_s']:.2f}", f"{use['cpu_share'] or 0:.0%}", *_memory(use))
        for name, use in result["processes"].items()
    ]
    keyed = f", {result['keys']:,} keys, {result['partitions']} partitions" if result["keys"] else ""
    maps = f"chain of {result['chain']} maps" if result["chain"] > 1 else "map"
    function = _FUNCTIONS[result["function"]]
    compressed = "" if result["compression"] == Compression.NONE else f", compressed with {result['compression']}"
    stored = f"stored {('nowhere', 'once', 'twice')[result['stored_times']]} on their way{compressed}"
    limit, share, ledger = result["raw_limit_records_per_s"], result["share_of_limit"], result["ledger"]
    encrypted = [f"with TLS    {line}" for line in _lines(result["tls"])[1:4:2]] if "tls" in result else []
    return [
        f"generator -> {maps} ({function}) -> blackhole: {result['records']:,} records of {size} bytes{keyed}",
        f"rate        {rate:,} records/s ({rate * size / _MIB:.1f} MiB/s of values), {stored}",
        f"limit       {limit:,} records/s into {ledger} alone, stored once; the pipeline reaches {share:.0%} of it",
        f"latency     p50 {latency['p50']}, p99 {latency['p99']}, end to end",
        *encrypted,
        f"durability  {result['durability']}",
        *aligned(rows, left={0}),
    ]


def _measure_reduce(directory: Path, arguments: argparse.Namespace) -> Coroutine[Any, Any, dict[str, Any]]:
    # Spark's packages are in an extra.
    from millstream_runner.bench.reducing import QUERY, WindowLoad, measure_ingest, measure_spark, measure_windows

    async def measured() -> dict[str, Any]:
        _check_positive(arguments, "ingest-records", "records-per-window", "keys", "rate", "windows", "size")
        load = WindowLoad(
            arguments.records_per_window,
            arguments.keys,
            arguments.rate,
            arguments.windows,
            record_bytes=arguments.size,
            query=arguments.query or QUERY,
        )
        (directory / "pipeline").mkdir()
        measured = await measure_windows(
            directory / "pipeline", load, DurabilityLevel(arguments.durability), arguments.workers
        )
        (directory / "alone").mkdir()
        alone_s = await measure_spark(directory / "alone", load)
        ingest = await measure_ingest(directory, records=arguments.ingest_records, record_bytes=arguments.size)
        return {
            "bench": "reduce",
            "record_bytes": arguments.size,
            "ingest_records": arguments.ingest_records,
            "ingest_records_per_s": round(ingest.records_per_s),
            "append_limit_records_per_s": round(ingest.limit_records_per_s),
            "share_of_append_limit": round(ingest.records_per_s / ingest.limit_records_per_s, 4),
            "records_per_window": arguments.records_per_window,
            "keys": arguments.keys,
            "rate": arguments.rate,
            "close_to_commit_ms": {"p50": _milliseconds(measured, 0.5), "p99": _milliseconds(measured, 0.99)},
            "spark_alone_ms": round(alone_s * 1000, 2),
            "query": load.query,
            "hand_overs": measured.latency.total,
            "durability": measured.durability,
            "processes": {
                name: {
                    "cpu_share": round(use.cpu_s / measured.sampled_s, 3) if measured.sampled_s else None,
                    "rss_mib_max": round(use.rss_bytes_max / _MIB, 1),
                    "pss_mib_max": round(use.pss_bytes_max / _MIB, 1),
                }
                for name, use in sorted(measured.use.items())
            },
        }

    return measured()


def _reduce_lines(result: dict[str, Any]) -> list[str]:
    latency = result["close_to_commit_ms"]
    rows = [("PROCESS (with its functions)", "CPU", "RSS MiB", "PSS MiB")]
    rows += [(name, f"{use['cpu_share'] or 0:.0%}", *_memory(use)) for name, use in result["processes"].items()]
    ingest = f"{result['ingest_records_per_s']:,} records/s of {result['record_bytes']} bytes, fsynced"
    windows = f"{result['records_per_window']:,} records and {result['keys']:,} keys at {result['rate']:,} records/s"
    alone = f"Spark alone takes {result['spark_alone_ms']} ms for one"
    return [
        f"ingest      {ingest}; {result['share_of_append_limit']:.0%} of appending the same bytes alone",
        f"windows     {windows}: {result['query']}",
        f"close       p50 {latency['p50']} ms, p99 {latency['p99']} ms, from their close to the commit; {alone}",
        f"durability  {result['durability']}",
        *aligned(rows, left={0}),
    ]
