"""A plot of scores against strengths, as an SVG image."""

from __future__ import annotations

import math
from collections.abc import Sequence
from html import escape

WIDTH, HEIGHT = 640, 360
LEFT, RIGHT, TOP, BOTTOM = 64, 16, 40, 48
COLOUR = "#0072b2"
TICKS = 5

Mark = tuple[float, float, float | None, float | None]
"""The place, the value, and the bounds of the interval of the value."""


def drawn(title: str, of_values: str, marks: Sequence[Mark]) -> str:
    """The image. `of_values` names the values; the places are strengths."""
    places = [mark[0] for mark in marks]
    values = [value for mark in marks for value in mark[1:] if value is not None]
    across = _Axis(min(places), max(places), LEFT, WIDTH - RIGHT)
    upward = _Axis(min(values), max(values), HEIGHT - BOTTOM, TOP)
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="{HEIGHT}" '
        f'viewBox="0 0 {WIDTH} {HEIGHT}" font-family="sans-serif" font-size="12">',
        f'<rect width="{WIDTH}" height="{HEIGHT}" fill="white"/>',
        _text(WIDTH / 2, 22, title, "middle"),
        _text((LEFT + WIDTH - RIGHT) / 2, HEIGHT - 10, "strength", "middle"),
        _text(8, TOP - 12, of_values, "start"),
    ]
    for tick in across.ticks():
        x = across.at(tick)
        parts += [
            _line(x, HEIGHT - BOTTOM, x, HEIGHT - BOTTOM + 5, "#444"),
            _text(x, HEIGHT - BOTTOM + 19, f"{tick:g}", "middle"),
        ]
    for tick in upward.ticks():
        y = upward.at(tick)
        parts += [
            _line(LEFT, y, WIDTH - RIGHT, y, "#ddd"),
            _text(LEFT - 6, y + 4, f"{tick:g}", "end"),
        ]
    for place, _, low, high in marks:
        if low is not None and high is not None:
            x = across.at(place)
            parts.append(_line(x, upward.at(low), x, upward.at(high), COLOUR))
    line = " ".join(
        f"{across.at(place):.1f},{upward.at(value):.1f}" for place, value, _, _ in marks
    )
    parts.append(f'<polyline points="{line}" fill="none" stroke="{COLOUR}" stroke-width="2"/>')
    for place, value, _, _ in marks:
        x, y = across.at(place), upward.at(value)
        parts.append(f'<circle cx="{x:.1f}" cy="{y:.1f}" r="3.5" fill="{COLOUR}"/>')
    return "\n".join([*parts, "</svg>"]) + "\n"


class _Axis:
    """Values from `low` to `high`, from the pixel `begin` to the pixel `end`."""

    def __init__(self, low: float, high: float, begin: float, end: float) -> None:
        self._low, self._high = (low, high) if high > low else (low - 0.5, high + 0.5)
        self._begin, self._end = begin, end

    def at(self, value: float) -> float:
        share = (value - self._low) / (self._high - self._low)
        return self._begin + share * (self._end - self._begin)

    def ticks(self) -> list[float]:
        """Round numbers within the axis: multiples of 1, 2 or 5 times a power of ten."""
        raw = (self._high - self._low) / TICKS
        power = 10.0 ** math.floor(math.log10(raw))
        step = next(part * power for part in (1, 2, 5, 10) if part * power >= raw)
        first, last = math.ceil(self._low / step), math.floor(self._high / step)
        return [round(number * step, 10) for number in range(first, last + 1)]


def _line(x: float, y: float, to_x: float, to_y: float, colour: str) -> str:
    return f'<line x1="{x:.1f}" y1="{y:.1f}" x2="{to_x:.1f}" y2="{to_y:.1f}" stroke="{colour}"/>'


def _text(x: float, y: float, text: str, anchor: str) -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}" fill="#222">{escape(text)}</text>'
