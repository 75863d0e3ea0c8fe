"""Draws the plots of docs/performance-history.md with matplotlib, which the extra `bench` installs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure

SIZE = (6.4, 3.6)
DPI = 100
COLOURS = ("#0072b2", "#56b4e9", "#009e73", "#d55e00", "#cc79a7", "#e69f00", "#000000")
"""Okabe and Ito's colours, which people with any colour vision can tell apart."""
MARKERS = "osD^v<>"


def throughput(part: Mapping[str, Any]) -> Figure:
    """Tokens per second against the requests at once, of every contender."""
    figure, axes = _empty("requests at once", "tokens/s")
    for number, (name, cells) in enumerate(part["cells"].items()):
        counts = sorted(map(int, cells))
        speeds = [cells[str(count)]["tokens_per_s"] for count in counts]
        _line(axes, number, name, counts, speeds)
    counts = sorted({int(count) for cells in part["cells"].values() for count in cells})
    axes.set_xscale("log", base=2)
    axes.set_xticks(counts, [str(count) for count in counts])
    axes.set_ylim(bottom=0)
    axes.legend(fontsize=8, frameon=False)
    return figure


def long_prompts(part: Mapping[str, Any]) -> Figure:
    """The gaps between the tokens of short requests, alone and beside long prompts."""
    figure, axes = _empty("", "gap between tokens, ms")
    names = [name for name in part["phases"] if name != "alone"]
    names = ["alone", *sorted(names, key=lambda name: (name.split(",")[0], "decode" in name))]
    for number, share in enumerate(("p50", "p99")):
        spreads = [part["phases"][name]["gap_s"][share] for name in names]
        heights = [one["median"] * 1e3 for one in spreads]
        places = [place + (number - 0.5) * 0.38 for place in range(len(names))]
        axes.bar(
            places,
            heights,
            0.36,
            yerr=_errors(spreads, 1e3),
            capsize=2,
            color=COLOURS[number * 3],
            label=share,
        )
        for place, height in zip(places, heights, strict=True):
            axes.annotate(f"{height:.0f}", (place, height), ha="center", va="bottom", fontsize=7)
    axes.set_xticks(range(len(names)), [name.replace(", ", "\n") for name in names])
    axes.legend(fontsize=8, frameon=False)
    return figure


def _empty(x: str, y: str) -> tuple[Figure, Axes]:
    figure = Figure(figsize=SIZE, dpi=DPI, layout="constrained")
    axes = figure.add_subplot()
    axes.set_xlabel(x)
    axes.set_ylabel(y)
    axes.spines[["top", "right"]].set_visible(False)
    axes.grid(axis="y", alpha=0.3)
    axes.set_axisbelow(True)
    return figure, axes


def _line(
    axes: Axes,
    number: int,
    name: str,
    counts: Sequence[int],
    spreads: Sequence[Mapping[str, float]],
) -> None:
    axes.errorbar(
        counts,
        [one["median"] for one in spreads],
        yerr=_errors(spreads),
        label=name,
        color=COLOURS[number % len(COLOURS)],
        marker=MARKERS[number % len(MARKERS)],
        markersize=4,
        capsize=2,
    )


def _errors(spreads: Sequence[Mapping[str, float]], factor: float = 1.0) -> list[list[float]]:
    """How far the least and the greatest value lie from the median."""
    return [
        [(one["median"] - one["least"]) * factor for one in spreads],
        [(one["greatest"] - one["median"]) * factor for one in spreads],
    ]


def written(figure: Figure, digest: str, target: Path) -> None:
    """Write a PNG that names the figures it was drawn from, so that a test can tell whether it is stale."""
    target.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(target, metadata={"Source": digest, "Software": None})
