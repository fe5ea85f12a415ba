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
from millstream_runner.doctor.checks import CheckState, Finding, Needs
from millstream_runner.local.directory import HOME
from millstream_runner.local.formatting import folded
from millstream_runner.local.screen import width_of

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
_STYLES = {
    CheckState.OK: Style.GOOD,
    CheckState.WARNING: Style.WARNING,
    CheckState.MISSING: Style.ERROR,
    CheckState.OPTIONAL: Style.NOTE,
}
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
    missing = [finding.name for finding in found if finding.state is CheckState.MISSING]
    if arguments.json:
        print(json.dumps({"ready": not missing, "checks": [finding.as_json() for finding in found]}))
    else:
        _show_result(found, missing, "" if arguments.file is None else f" for {arguments.file}")
    return InfrastructureError.exit_code if missing else 0


def _show(finding: Finding) -> None:
    state: Part = (_STYLES[finding.state], f"{finding.state.value:<9}")
    _show_folded([state, "  ", (Style.HEADING, finding.name), ": "], in_line(finding.found))
    _show_folded([_INDENT], f"for {finding.needed_for}")
    if finding.remedy:
        _show_folded([_INDENT, (Style.NAME, "to do: ")], finding.remedy)
    sys.stdout.flush()


def _show_folded(head: Sequence[Part], text: str) -> None:
    """Print a text after `head`, on as many lines as it needs."""
    used = sum(len(part if isinstance(part, str) else part[1]) for part in head)
    first, *others = folded(text, width_of(sys.stdout), indent=len(_INDENT), used=used)
    show(*head, first, file=sys.stdout)
    for line in others:
        show(line, file=sys.stdout)


def _show_result(found: Sequence[Finding], missing: Sequence[str], of: str) -> None:
    warnings = [finding.name for finding in found if finding.state is CheckState.WARNING]
    show(file=sys.stdout)
    if missing:
        _show_folded([(Style.ERROR, "not ready")], f"{of}: {', '.join(missing)} (see above)")
        return
    doubts = f"; see above: {', '.join(warnings)}" if warnings else ""
    _show_folded([(Style.GOOD, "ready")], f"{of}{doubts}")
