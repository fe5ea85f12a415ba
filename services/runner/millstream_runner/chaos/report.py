"""The report of an experiment: lines for people, an object for programs. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any

from millstream_runner.chaos.experiment import Experiment
from millstream_runner.chaos.session import Struck
from millstream_runner.local.formatting import aligned


def as_json(experiment: Experiment) -> dict[str, Any]:
    """The report for programs."""
    struck = experiment.outcome.struck
    violated = [
        f"{check['subject']}: {check['what']}: {check['detail']}"
        for check in experiment.verdict["checks"]
        if check["result"] == "violated"
    ]
    return {
        "sound": experiment.sound,
        "seconds": round(experiment.outcome.seconds, 1),
        "faults": dict(Counter(one.strike.what for one in struck)),
        "missed": {role.value: times for role, times in experiment.outcome.missed.items() if times},
        "resume_s": {
            "without_spark": _figures(one for one in struck if not one.spark_again),
            "spark_again": _figures(one for one in struck if one.spark_again),
        },
        "counts": experiment.verdict["counts"],
        "violations": [*experiment.faults, *violated],
        "shortfall": experiment.shortfall or None,
        "checks": experiment.verdict["checks"],
        "zombies": {"woken": experiment.outcome.succeeded, "fenced": experiment.outcome.fenced},
        "drained": experiment.outcome.drained,
    }


def lines(experiment: Experiment) -> list[str]:
    """The report for people."""
    struck = experiment.outcome.struck
    rows: list[tuple[str, ...]] = [
        ("FAULT", "TIMES", "MEASURED", "MEDIAN", "P99", "MAX"),
        *(
            _row(what, [one for one in struck if one.strike.what == what])
            for what in sorted({one.strike.what for one in struck})
        ),
        _row("all without Spark", [one for one in struck if not one.spark_again]),
    ]
    if any(one.spark_again for one in struck):
        rows.append(_row("all with Spark again", [one for one in struck if one.spark_again]))
    found = [*aligned(rows, left={0}), ""]
    checks: list[tuple[str, ...]] = [
        ("CHECK", "OF", "RESULT", ""),
        *(
            (
                check["what"],
                check["subject"],
                check["result"].upper() if check["result"] == "violated" else check["result"],
                check["detail"],
            )
            for check in experiment.verdict["checks"]
        ),
    ]
    found += aligned(checks, left={0, 1, 2, 3})
    if experiment.outcome.succeeded:
        slept = f"{experiment.outcome.succeeded} vertices were paused while a successor took over"
        fenced = f"{experiment.outcome.fenced} of them were fenced when they resumed; the others had nothing left to do"
        found += ["", f"{slept}; {fenced}"]
    found += ["", *(f"VIOLATED: {fault}" for fault in experiment.faults)]
    if experiment.shortfall:
        found.append(f"INCOMPLETE: {experiment.shortfall}")
    how = "drained" if experiment.outcome.drained else "ended"
    found.append(
        f"{_conclusion(experiment)}: {len(struck)} faults in {experiment.outcome.seconds:.0f} s, the run {how}"
    )
    return found


def _conclusion(experiment: Experiment) -> str:
    if experiment.sound:
        return "SOUND"
    return "VIOLATED" if experiment.faults or not experiment.verdict["sound"] else "INCOMPLETE"


def fault_line(struck: Struck) -> str:
    """One fault, once it is known how soon the run recovered."""
    if struck.resume_s is not None:
        how = f"back after {struck.resume_s:.2f} s"
    elif struck.absent:
        how = f"NOT BACK: {', '.join(struck.absent)}"
    else:
        how = "the next fault came first" if not struck.measured else "nothing was left to do"
    process = f" ({struck.process})" if struck.process else ""
    return f"{struck.at_s:7.1f} s  {struck.strike.number}. {struck.strike.what}{process}: {how}"


def _row(what: str, struck: Sequence[Struck]) -> tuple[str, ...]:
    figures = _figures(struck)
    shown = (f"{figures[name]:.2f} s" if figures["measured"] else "" for name in ("median", "p99", "max"))
    return (what, str(len(struck)), str(figures["measured"]), *shown)


def _figures(struck: Iterable[Struck]) -> dict[str, Any]:
    measured = [one.resume_s for one in struck if one.resume_s is not None]
    if not measured:
        return {"measured": 0}
    return {
        "measured": len(measured),
        "median": round(percentile(measured, 0.5), 3),
        "p99": round(percentile(measured, 0.99), 3),
        "max": round(max(measured), 3),
    }


def percentile(values: Sequence[float], share: float) -> float:
    """The smallest of these values that at least this share of them does not exceed."""
    return sorted(values)[max(0, -(-len(values) * round(share * 1000) // 1000) - 1)]
