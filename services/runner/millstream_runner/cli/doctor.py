"""`millstream doctor`: checks whether this machine has what Millstream or one pipeline needs."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Iterator, Sequence

from millstream.errors import InfrastructureError
from millstream.printable import in_line
from millstream_runner.colours import Part, Style, show
from millstream_runner.doctor import machine, parts
from millstream_runner.doctor.checks import Finding, Needs, State
from millstream_runner.local.directory import HOME

CHECKS: Sequence[Callable[[Needs], Iterator[Finding]]] = (
    machine.python,
    parts.packages,
    machine.disk,
    machine.memory,
    machine.limits,
    machine.temporary,
    machine.ports,
    parts.broker,
    parts.extras,
    parts.spark,
    parts.go,
    parts.sandbox,
    machine.terminal,
)
_STYLES = {State.OK: Style.GOOD, State.WARNING: Style.WARNING, State.MISSING: Style.ERROR, State.OPTIONAL: Style.NOTE}
_INDENT = " " * 11


def run(arguments: argparse.Namespace) -> int:
    if arguments.file is None:
        needs = Needs(pipeline=False, directory=arguments.data_dir or HOME)
    else:
        from millstream.spec.loading import load
        from millstream_runner.doctor.needs import needs_of

        needs = needs_of(load(arguments.file), arguments.data_dir)
    found = []
    for check in CHECKS:
        for finding in check(needs):
            found.append(finding)
            if not arguments.json:
                # Printed one by one, because some take a second.
                _show(finding)
    missing = [finding.name for finding in found if finding.state is State.MISSING]
    if arguments.json:
        print(json.dumps({"ready": not missing, "checks": [finding.as_json() for finding in found]}))
    else:
        _show_result(found, missing, "" if arguments.file is None else f" for {arguments.file}")
    return InfrastructureError.exit_code if missing else 0


def _show(finding: Finding) -> None:
    state: Part = (_STYLES[finding.state], f"{finding.state.value:<9}")
    show(state, "  ", (Style.HEADING, finding.name), f": {in_line(finding.found)}", file=sys.stdout)
    show(f"{_INDENT}for {finding.needed_for}", file=sys.stdout)
    if finding.remedy:
        show(_INDENT, (Style.NAME, "to do: "), finding.remedy, file=sys.stdout)
    sys.stdout.flush()


def _show_result(found: Sequence[Finding], missing: Sequence[str], of: str) -> None:
    warnings = [finding.name for finding in found if finding.state is State.WARNING]
    show(file=sys.stdout)
    if missing:
        show((Style.ERROR, "not ready"), f"{of}: {', '.join(missing)} (see above)", file=sys.stdout)
        return
    doubts = f"; see above: {', '.join(warnings)}" if warnings else ""
    show((Style.GOOD, "ready"), f"{of}{doubts}", file=sys.stdout)
