"""By how much open pages slow the tokens of a text that somebody else streams.

A service with few processors and a browser on the same ones share them, and the engine computes on all of them: then the
figure has the time that the browser takes for itself, with any page. So the service can be measured on processors of
its own too. There, whatever it does for the pages is time that its engine lacks, and what the browser does is none.
"""

from __future__ import annotations

import itertools
import json
import math
import os
import statistics
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil

from steerserve import demo
from tests.browser.service import Demo

ROUNDS, TEXTS, TOKENS = 6, 6, 256
"""In each round, the same texts are timed without the pages, with them, and without them again."""
TURNS = ("before", "pages", "after")


@dataclass(frozen=True, slots=True)
class Turns:
    """What was measured in the turns of all rounds: seconds per token of each text, and processor time of the
    service."""

    times: dict[str, list[float]] = field(default_factory=lambda: {name: [] for name in TURNS})
    used: dict[str, float] = field(default_factory=lambda: dict.fromkeys(TURNS, 0.0))

    def growth(self) -> float:
        """The median growth in percent."""
        return statistics.median(self._growths())

    def _growths(self) -> list[float]:
        """Each time with pages is compared with those of the same text around it."""
        around = map(_mean, zip(self.times["before"], self.times["after"], strict=True))
        return _growths(list(around), self.times["pages"])

    def described(self) -> dict[str, Any]:
        """What shows how far the machine allows to measure: the range in which the growth lies in 19 of 20 runs, and
        the growth between the turns without pages."""
        blank = [*self.times["before"], *self.times["after"]]
        tokens = len(self.times["pages"]) * TOKENS
        mean_used = (self.used["before"] + self.used["after"]) / 2
        return {
            "range_percent": _range(self._growths()),
            "without_pages_percent": round(
                statistics.median(_growths(self.times["before"], self.times["after"])), 2
            ),
            "milliseconds_per_token": {
                "blank": round(1e3 * statistics.median(blank), 3),
                "pages": round(1e3 * statistics.median(self.times["pages"]), 3),
            },
            "service_processor_ms_per_token": {
                "blank": round(1e3 * mean_used / tokens, 3),
                "pages": round(1e3 * self.used["pages"] / tokens, 3),
            },
            "all": {
                name: [round(1e3 * one, 3) for one in all_] for name, all_ in self.times.items()
            },
        }


def measured(service: Demo, show: Callable[[bool], None]) -> Turns:
    """Time the texts in turns. `show` opens the pages or closes them, and returns when the browser is at rest."""
    seeds = _long_texts(service)
    turns = Turns()
    for _, name in itertools.product(range(ROUNDS), TURNS):
        show(name == "pages")
        _seconds_per_token(service, seeds[0])
        before = service.processor_seconds()
        turns.times[name].extend(_seconds_per_token(service, seed) for seed in seeds)
        turns.used[name] += service.processor_seconds() - before
    return turns


def can_be_apart() -> bool:
    """Whether there are processors for both the service and the browser, and a system that pins processes to them."""
    return hasattr(os, "sched_getaffinity") and len(os.sched_getaffinity(0)) > 1


@contextmanager
def apart(home: Path) -> Iterator[Demo]:
    """A demo on half of the processors. The browser and this process have the other half meanwhile."""
    every = sorted(os.sched_getaffinity(0))
    middle = len(every) // 2
    # a process inherits the processors of the thread that starts it
    os.sched_setaffinity(0, every[:middle])
    try:
        service = Demo(home)
    finally:
        os.sched_setaffinity(0, every)
    try:
        _confine(every[middle:], service)
        yield service
    finally:
        _confine(every, service)
        service.close()


def _confine(processors: list[int], service: Demo) -> None:
    """Let all threads of this process and of those that it has started run on these processors, except the service."""
    own, served = psutil.Process(), psutil.Process(service.process.pid)
    trees = [{one, *one.children(recursive=True)} for one in (own, served)]
    for process in trees[0] - trees[1]:
        with suppress(FileNotFoundError):
            for task in Path(f"/proc/{process.pid}/task").iterdir():
                with suppress(ProcessLookupError):
                    os.sched_setaffinity(int(task.name), processors)


def _long_texts(service: Demo) -> list[int]:
    """Seeds whose texts do not end early. A short text is timed over too few tokens, and its end, with which the pages
    get their events, comes too often."""
    seeds = (seed for seed in itertools.count() if len(_times(service, seed)) >= 0.9 * TOKENS)
    return list(itertools.islice(seeds, TEXTS))


def _seconds_per_token(service: Demo, seed: int) -> float:
    """The mean time between the first and the last piece of a text."""
    times = _times(service, seed)
    return (times[-1] - times[0]) / (len(times) - 1)


def _times(service: Demo, seed: int) -> list[float]:
    """When each piece of a streamed text arrived. The same seed writes the same text."""
    body = {
        "model": demo.MODEL_NAME,
        "prompt": "One day",
        "max_tokens": TOKENS,
        "temperature": 1.9,
        "seed": seed,
        "stream": True,
    }
    times = []
    with service.http.stream("POST", "/v1/completions", json=body) as answer:
        for line in answer.iter_lines():
            if line.startswith("data: {") and json.loads(line[6:])["choices"]:
                times.append(time.perf_counter())
    return times


def _growths(before: list[float], after: list[float]) -> list[float]:
    return [100 * (new / old - 1) for old, new in zip(before, after, strict=True)]


def _range(values: list[float]) -> list[float]:
    """The range of the median at 95 %, from the order of the values: it needs no shape of their distribution."""
    ordered, half = sorted(values), 0.98 * math.sqrt(len(values))
    low = max(0, math.floor(len(values) / 2 - half))
    high = min(len(values) - 1, math.ceil(len(values) / 2 + half) - 1)
    return [round(ordered[low], 2), round(ordered[high], 2)]


def _mean(values: tuple[float, ...]) -> float:
    return statistics.fmean(values)
