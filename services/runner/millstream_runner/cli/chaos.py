"""`millstream chaos`: runs a pipeline, disturbs it, and reports how soon it recovered and whether anything was lost."""

from __future__ import annotations

import argparse
import logging
import shutil
import sys
import tempfile
from pathlib import Path

import uvloop

from millstream import codes
from millstream.errors import UserError
from millstream_runner.chaos.experiment import Options, conduct
from millstream_runner.chaos.plan import FaultKind
from millstream_runner.chaos.report import as_json, fault_line, lines
from millstream_runner.cli.answer import answer

VIOLATED = 1
"""Exit code if a guarantee did not hold, or fewer faults could be injected than requested."""


def run(arguments: argparse.Namespace) -> int:
    kinds = _kinds(arguments.faults)
    chosen: Path | None = arguments.dir
    directory = chosen or Path(tempfile.mkdtemp(prefix="millstream-chaos-"))
    options = Options(
        pipeline=arguments.pipeline,
        directory=directory,
        seed=arguments.seed,
        kills=arguments.kills,
        seconds=arguments.seconds,
        kinds=kinds,
        records=arguments.records,
        rate=arguments.rate,
        keys=arguments.keys,
        partitions=arguments.partitions,
        id_field=arguments.id,
        secured=arguments.secured,
        ledger=arguments.ledger,
        workers=arguments.workers,
    )
    keep = chosen is not None
    log = logging.getLogger("millstream")
    level = log.level
    # The table says enough about connections that break.
    log.setLevel(logging.ERROR)
    try:
        experiment = uvloop.run(conduct(options, lambda struck: print(fault_line(struck), file=sys.stderr, flush=True)))
        keep = keep or not experiment.sound
        kept = f"; everything is kept in {directory}" if keep else ""
        facts = {**as_json(experiment), "seed": arguments.seed}
        answer(arguments, facts, [*lines(experiment), f"seed {arguments.seed}{kept}"])
        return 0 if experiment.sound else VIOLATED
    finally:
        log.setLevel(level)
        if not keep:
            shutil.rmtree(directory, ignore_errors=True)


def _kinds(text: str) -> tuple[FaultKind, ...]:
    known = {kind.value: kind for kind in FaultKind}
    names = [name.strip() for name in text.split(",") if name.strip()]
    unknown = [name for name in names if name not in known]
    if unknown or not names:
        raise UserError(
            codes.OPTION_VALUE, f"--faults {text!r}: expected one or more of {', '.join(known)}, separated by commas"
        )
    return tuple(dict.fromkeys(known[name] for name in names))
