"""`millstream spark`: creates the cache that Spark starts from, and checks how Spark works on this machine."""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from dataclasses import asdict
from pathlib import Path

import uvloop

from millstream_reduce.spark.settings import SparkSettings
from millstream_runner.cli.answer import answer
from millstream_runner.local.formatting import aligned


def run(arguments: argparse.Namespace) -> int:
    if arguments.action == "prepare":
        _prepare(arguments)
    else:
        _check(arguments)
    return 0


def _prepare(arguments: argparse.Namespace) -> None:
    from millstream_reduce.spark.preparing import prepare

    begun_s = time.monotonic()

    def say(what: str) -> None:
        print(f"{time.monotonic() - begun_s:4.0f} s  {what}", file=sys.stderr, flush=True)

    prepared = uvloop.run(prepare(again=arguments.again, on_progress=say))
    size = prepared.path.stat().st_size
    facts = {
        "cache": str(prepared.path),
        "made": prepared.made,
        "bytes": size,
        "seconds": round(prepared.seconds, 3),
    }
    how = f"created in {prepared.seconds:.0f} s" if prepared.made else "cache already exists"
    answer(arguments, facts, [f"{how}: {prepared.path} ({size / 2**20:.0f} MiB)"])


def _check(arguments: argparse.Namespace) -> None:
    from millstream_reduce.spark.preparing import report

    found = uvloop.run(report(_settings(arguments.file)))
    rows = [
        ("Spark", f"{found.spark_version} ({found.spark_home})"),
        ("runs on", found.place),
        ("Java", f"{found.java_version} ({found.java_executable})" if found.java_version else "that of the server"),
        (
            "cache",
            found.cache or ("none: `millstream spark prepare` creates it" if found.java_version else "none needed"),
        ),
        ("ready after", f"{found.start_s:.1f} s"),
        ("its first job", f"{found.first_job_s:.1f} s"),
        ("a small job", f"{found.job_ms:.0f} ms"),
    ]
    answer(arguments, asdict(found), aligned(rows, left={0, 1}))


def _settings(file: Path | None) -> SparkSettings:
    """The settings of a pipeline, with another `directory`."""
    anywhere = Path(tempfile.gettempdir())
    if file is None:
        return SparkSettings(anywhere)
    from millstream.spec.loading import load
    from millstream_reduce.spark.settings import settings_of

    loaded = load(file)
    return settings_of(loaded.pipeline, loaded.base_dir, anywhere)
