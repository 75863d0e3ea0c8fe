"""What a `/v1` request wants: the only thing that passes the compatible door."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Sampling:
    """How tokens are chosen, with every bound already checked.

    `temperature` 0 is greedy, `top_p` 0 keeps the most probable token only; `repetition_penalty` 1 is none.
    """

    temperature: float = 1.0
    top_p: float = 1.0
    repetition_penalty: float = 1.0
    max_tokens: int | None = None
    stops: tuple[str, ...] = ()
    seed: int | None = None


@dataclass(frozen=True, slots=True)
class Generate:
    """Complete each prompt `n` times. A prompt is a text, or a conversation as a tuple of messages."""

    model: str
    prompts: tuple[str | tuple[Mapping[str, Any], ...], ...]
    sampling: Sampling
    n: int = 1
    is_stream: bool = False
    ignored: tuple[str, ...] = ()

    @property
    def choices(self) -> int:
        return len(self.prompts) * self.n


def repetition_penalty(frequency: float, presence: float) -> float:
    """The two penalties of the protocol as one repetition penalty (Keskar et al. 2019, arXiv:1909.05858).

    `2 ** ((frequency + presence) / 4)`: 1 when both are 0, 2 when both are at their maximum of 2, 1/2 at their
    minimum of -2, and always positive.
    """
    return float(2.0 ** ((frequency + presence) / 4.0))
