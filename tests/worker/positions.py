"""Positions of edits and reads, drawn by chance, and the slow truth of what is one of them."""

from __future__ import annotations

import random
from collections.abc import Sequence

from steerserve.rules.steering.positions import Positions, Selection


def selected(positions: Positions, at: int, size: int, ids: Sequence[int]) -> bool:
    """Whether position `at` of a text, whose prompt has `size` of the tokens `ids`, is one of these positions."""

    def within(part: Selection) -> bool:
        g = at - size
        names = {
            "all": True,
            "prompt": at < size - 1,
            "last_prompt": at == size - 1,
            "generated": g >= 0,
            "output": g >= -1,
        }
        window, later = part.prompt_window, part.generated_window
        return (
            any(names[name] for name in part.names)
            or (at < size and any(p in (at, at - size) for p in part.prompt_positions))
            or (window is not None and at < size and window[0] <= at < window[1])
            or (later is not None and later[0] <= g < later[1])
            or ids[at] in part.tokens
        )

    return within(positions.include) and not (positions.exclude and within(positions.exclude))


def drawn_positions(source: random.Random, ids: Sequence[int]) -> Positions:
    """Positions in a text whose prompt has these tokens, at least two."""
    window = (source.randint(0, 9), source.randint(10, 60))
    parts = [
        Selection(names=("all",)),
        Selection(names=("prompt",)),
        Selection(names=("last_prompt",)),
        Selection(names=("generated",)),
        Selection(names=("output",)),
        Selection(prompt_positions=(0, 1, -2)),
        Selection(prompt_window=window),
        Selection(generated_window=(1, source.randint(2, 6))),
        Selection(tokens=(source.choice(ids),), names=("generated",)),
    ]
    exclude = source.choice(
        [None, None, Selection(prompt_positions=(-1,)), Selection(names=("last_prompt",))]
    )
    return Positions(source.choice(parts), exclude)
