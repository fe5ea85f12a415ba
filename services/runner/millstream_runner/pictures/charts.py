"""Line charts over time as SVG: axes with units, a legend, and a description in words. Pure.

Above it: the report of a run. Below it: the page's colours.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from millstream_runner.local.formatting import duration_text, shortened
from millstream_runner.pictures.page import SERIES, in_both, text

_WIDTH, _HEIGHT = 900.0, 240.0
_LEFT, _RIGHT, _TOP, _BOTTOM = 74.0, 14.0, 14.0, 30.0
_LINES_MAX = len(SERIES["light"])
_LEGEND_CHARS_MAX = 30
_TICKS = 5
_TIMES = (1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 10800, 21600, 43200, 86400)
"""Seconds between two ticks of the time axis; beyond that, whole days."""
_STYLE = """\
.chart text{font:11px system-ui,sans-serif}.chart .unit{font-weight:600}.chart path{fill:none;stroke-width:1.6;
stroke-linejoin:round}.chart .grid{stroke-width:1}
"""
_RULES = ".chart text{fill:$soft}.chart .grid{stroke:$line}\n"


@dataclass(frozen=True, slots=True)
class Line:
    """One line of a chart, with a value for each time; None if there is none."""

    name: str
    values: Sequence[float | None]


def chart_style() -> str:
    """The style that the charts of a page need, once."""
    colours = [
        "".join(f".chart .s{index}{{stroke:{colour}}}" for index, colour in enumerate(SERIES[which]))
        for which in ("light", "dark")
    ]
    return f"<style>\n{_STYLE}{in_both(_RULES)}{colours[0]}@media(prefers-color-scheme:dark){{{colours[1]}}}</style>"


def line_chart(name: str, title: str, unit: str, times_s: Sequence[float], lines: Sequence[Line]) -> str:
    """A figure with the lines; if there are more than colours, those with the highest values.

    `name`: that of the figure in its page, for references. `times_s`: since the beginning, rising.
    """
    drawn = sorted(lines, key=lambda line: -_highest(line))[:_LINES_MAX]
    drawn = [line for line in lines if line in drawn and any(value is not None for value in line.values)]
    more = len(lines) - len(drawn)
    caption = f"{title} ({unit}), by time since the start."
    if more:
        caption += f" {more} more without or with lower values."
    if len(times_s) < 2 or not drawn:
        return f"<figure><figcaption>{text(title)}: there are too few figures for a chart.</figcaption></figure>"
    top = _nice(max(_highest(line) for line in drawn))
    legend_rows = -(-len(drawn) // 4)
    height = _HEIGHT + 18.0 * legend_rows
    size = f'width="{_WIDTH:.0f}" height="{height:.0f}" viewBox="0 0 {_WIDTH:.0f} {height:.0f}"'
    parts = [
        "<figure>",
        f'<svg class="chart" {size} role="img" aria-labelledby="{name}-title {name}-description">',
        f'<title id="{name}-title">{text(title)}</title>',
        f'<desc id="{name}-description">{text(_in_words(drawn, unit))}</desc>',
        *_axes(top, unit, times_s),
        *(_path(index, line, times_s, top) for index, line in enumerate(drawn)),
        *_legend(drawn),
        "</svg>",
        f"<figcaption>{text(caption)}</figcaption>",
        "</figure>",
    ]
    return "\n".join(parts)


def _highest(line: Line) -> float:
    return max((value for value in line.values if value is not None), default=0.0)


def _nice(value: float) -> float:
    """The end of an axis that includes this value: a round number."""
    if value <= 0:
        return 1.0
    unit = 10.0 ** math.floor(math.log10(value))
    return next(unit * factor for factor in (1, 1.5, 2, 3, 4, 5, 7.5, 10) if unit * factor >= value)


def _x(time_s: float, times_s: Sequence[float]) -> float:
    share = (time_s - times_s[0]) / (times_s[-1] - times_s[0])
    return _LEFT + share * (_WIDTH - _LEFT - _RIGHT)


def _y(value: float, top: float) -> float:
    return _HEIGHT - _BOTTOM - value / top * (_HEIGHT - _TOP - _BOTTOM)


def _axes(top: float, unit: str, times_s: Sequence[float]) -> Iterator[str]:
    for step in range(_TICKS + 1):
        value = top * step / _TICKS
        y = _y(value, top)
        yield f'<path class="grid" d="M{_LEFT:.0f} {y:.1f}H{_WIDTH - _RIGHT:.0f}"/>'
        yield f'<text x="{_LEFT - 6:.0f}" y="{y + 4:.1f}" text-anchor="end">{_value_text(value)}</text>'
    turned = f'transform="translate(12 {(_HEIGHT - _BOTTOM) / 2:.0f}) rotate(-90)" text-anchor="middle"'
    yield f'<text class="unit" {turned}>{text(unit)}</text>'
    span_s = times_s[-1] - times_s[0]
    between_s = next((one for one in _TIMES if span_s / one <= 8), math.ceil(span_s / 8 / 86400) * 86400)
    time_s = math.ceil(times_s[0] / between_s) * between_s
    while time_s <= times_s[-1]:
        x = _x(time_s, times_s)
        yield f'<path class="grid" d="M{x:.1f} {_HEIGHT - _BOTTOM:.0f}v4"/>'
        yield f'<text x="{x:.1f}" y="{_HEIGHT - _BOTTOM + 16:.0f}" text-anchor="middle">{duration_text(time_s)}</text>'
        time_s += between_s


def _value_text(value: float) -> str:
    for size, letter in ((1e9, "G"), (1e6, "M"), (1e4, "k")):
        if value >= size:
            shown = value / (1e3 if letter == "k" else size)
            return f"{shown:,.3g}{letter}" if shown < 1000 else f"{shown:,.0f}{letter}"
    return f"{value:,.4g}"


def _path(index: int, line: Line, times_s: Sequence[float], top: float) -> str:
    steps, pen_up = [], True
    for time_s, value in zip(times_s, line.values, strict=True):
        if value is None:
            pen_up = True
            continue
        steps.append(f"{'M' if pen_up else 'L'}{_x(time_s, times_s):.1f} {_y(value, top):.1f}")
        pen_up = False
    return f'<path class="s{index}" d="{"".join(steps)}"><title>{text(line.name)}</title></path>'


def _legend(lines: Sequence[Line]) -> Iterator[str]:
    for index, line in enumerate(lines):
        x, y = _LEFT + index % 4 * 205.0, _HEIGHT + 8.0 + index // 4 * 18.0
        yield f'<path class="s{index}" d="M{x:.0f} {y:.0f}h18"/>'
        yield f'<text x="{x + 24:.0f}" y="{y + 4:.0f}">{text(shortened(line.name, _LEGEND_CHARS_MAX))}</text>'


def _in_words(lines: Sequence[Line], unit: str) -> str:
    parts = []
    for line in lines:
        values = [value for value in line.values if value is not None]
        parts.append(f"{line.name}: {sum(values) / len(values):,.4g} {unit} on average, {max(values):,.4g} at most")
    return "; ".join(parts)
