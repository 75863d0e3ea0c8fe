"""What a run of the throughput measures, and how often."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import platformdirs

from benchmarks import models

CACHE = platformdirs.user_cache_path("steerserve-benchmarks")
"""The folder of models and peers, where no other is named."""


@dataclass(frozen=True, slots=True)
class Plan:
    """How much a run does.

    Attributes:
        is_quick: whether answers are short, and times are half as long.
        rounds: how often everything is measured; what is compared is measured in turns, once in each round.
        peers: the names of the other servers beside ours.
        cache: the folder of checkpoints, GGUF files and the environment of the peers.
        scratch: a folder that the run deletes at its end.
        say: prints a line of progress.
    """

    is_quick: bool
    rounds: int
    peers: tuple[str, ...]
    cache: Path
    scratch: Path
    say: Callable[[str], None]

    @property
    def tokens(self) -> int:
        """The tokens of each answer, where a part does not say otherwise."""
        return 32 if self.is_quick else 96

    def seconds(self, whole: float) -> float:
        """How long something is measured that takes so many seconds in a whole run."""
        return whole / 2 if self.is_quick else whole

    def checkpoint(self, size: str) -> Path:
        return models.sized(size, self.cache / size)

    def turns(self, most_seconds: float, times: int = 1) -> Iterator[int]:
        """Numbers of rounds. No round begins after `most_seconds`, except the first."""
        began = time.monotonic()
        for turn in range(self.rounds * times):
            if turn and time.monotonic() - began > most_seconds:
                self.say(f"  the time of this part is over after {turn} rounds")
                return
            yield turn
