"""`millstream run` under chaos, as a process: `python -m millstream_runner.chaos.runner --help`.

It is the same runner with the same pipeline, with two differences: file sinks write below a directory of the experiment
instead of the place of the user's results, and the vertices may connect to the broker through a path with faults.
"""

from __future__ import annotations

import argparse
import dataclasses
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import uvloop

from millstream.buffers.registry import over
from millstream.errors import MillstreamError, first_cause
from millstream.plan.plan import plan_of
from millstream.printable import printable_output
from millstream.spec.graph import Graph
from millstream.spec.loading import LoadedPipeline, load
from millstream.spec.models import Pipeline
from millstream_connectors.file.settings import FileSink
from millstream_runner.local.run import RunOptions, run
from millstream_runner.local.screen import choose_screen
from millstream_runner.local.summary import summary_lines


def main(arguments: Sequence[str] | None = None) -> int:
    """Run until the pipeline has ended, is asked to stop, or fails. Returns the exit code."""
    with printable_output():
        return _run(_parser().parse_args(arguments))


def _run(options: argparse.Namespace) -> int:
    screen = choose_screen(sys.stderr, quiet=False)
    try:
        loaded = redirected(load(options.file), options.sinks)
        if options.ledger is not None:
            loaded = over(loaded, options.ledger)
        settings = RunOptions(data_dir=options.data_dir, broker_path=options.broker_path, workers=options.workers)
        result = uvloop.run(run(loaded, settings, screen))
    except (MillstreamError, BaseExceptionGroup) as error:
        cause = first_cause(error)
        if cause is None:
            raise
        screen.message(cause.shown)
        return cause.exit_code
    if result.failure is not None:
        screen.message(f"{result.failure.heading}: {result.failure.message}")
    for line in summary_lines(result.summary) if result.summary is not None else ():
        screen.message(line)
    return result.exit_code


def redirected(loaded: LoadedPipeline, directory: Path) -> LoadedPipeline:
    """The same pipeline, with file sinks that write below `directory`, each under the name of its vertex."""
    contents: dict[str, Any] = loaded.pipeline.as_written(given_only=True)
    for vertex, written in zip(loaded.pipeline.spec.vertices, contents["spec"]["vertices"], strict=True):
        for placed in vertex.ends:
            if isinstance(placed.end.settings, FileSink):
                part = written[vertex.key]
                for step in (*placed.path, placed.end.kind):
                    part = part[step]
                part["path"] = str(directory.absolute() / ".".join((vertex.name, *map(str, placed.path))))
    return dataclasses.replace(loaded, plan=plan_of(Graph.of(Pipeline.model_validate(contents))))


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m millstream_runner.chaos.runner", description=__doc__)
    parser.add_argument("file", type=Path, metavar="FILE", help="the pipeline")
    parser.add_argument("--data-dir", type=Path, required=True, metavar="DIR", help="as for `millstream run`")
    parser.add_argument(
        "--sinks", type=Path, required=True, metavar="DIR", help="directory below which file sinks write"
    )
    parser.add_argument("--broker-path", metavar="URL", help="where the vertices reach the broker (default: directly)")
    parser.add_argument("--ledger", metavar="NAME", help="as for `millstream run`")
    parser.add_argument("--workers", type=int, metavar="N", help="as for `millstream run`")
    return parser


if __name__ == "__main__":
    sys.exit(main())
