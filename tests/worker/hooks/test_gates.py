"""All conditions of the edits of a site are decided together, and hold where each by itself does."""

from __future__ import annotations

import random

import torch

from steerserve.messages import Suppressed
from steerserve.rules.steering.edits import AllOf, AnyOf, Condition, Feature, When, conditions
from steerserve.worker.hooks.gates import Gates
from steerserve.worker.hooks.parts import Part, Span
from steerserve.worker.hooks.readings import Readings
from steerserve.worker.rows.steering import RowSteering, is_true, needs_record

WIDTH, FEATURES, PROMPT = 5, 6, 3
HERE, ELSEWHERE = "here@1", "there@0"


def leaf(draw: random.Random) -> Condition:
    reads = Feature(draw.choice([HERE, ELSEWHERE]), draw.randrange(FEATURES))
    bound = {draw.choice(["above", "below"]): draw.uniform(-1.0, 1.0)}
    over, hold = draw.choice(
        [("token", 1)] * 4 + [("token", 2), ("token", None), ("prompt_max", 1)]
    )
    return Condition(reads, **bound, over=over, hold=hold)


def tree(draw: random.Random, deep: int) -> When:
    if not deep or draw.random() < 0.3:
        return leaf(draw)
    kind = draw.choice([AnyOf, AllOf])
    return kind(tuple(tree(draw, deep - 1) for _ in range(draw.randint(1, 4))))


def naive(when: When, row: RowSteering, read: dict[Feature, list[float]], at: int) -> bool:
    if isinstance(when, Condition):
        if needs_record(when):
            return row.holds(when, at)
        assert isinstance(when.reads, Feature)
        return is_true(when, read[when.reads][at])
    found = [naive(one, row, read, at) for one in when.conditions]
    return all(found) if isinstance(when, AllOf) else any(found)


def test_conditions_that_are_decided_together_hold_where_each_does() -> None:
    for seed in range(40):
        draw = random.Random(seed)
        parts = [Part(n, RowSteering(Suppressed(), [1] * PROMPT, [2] * WIDTH)) for n in range(3)]
        whens = [
            (draw.randrange(3), tree(draw, 4) if draw.random() < 0.9 else None) for _ in range(9)
        ]
        read = [
            {
                Feature(key, index): torch.randn(WIDTH, generator=torch.Generator().manual_seed(at))
                for at, (key, index) in enumerate(
                    ((key, index) for key in (HERE, ELSEWHERE) for index in range(FEATURES)),
                    100 * seed + 20 * row,
                )
            }
            for row in range(3)
        ]
        named = [(row, one) for row in range(3) for one in read[row] if one.key == HERE]
        found = [torch.stack([read[row][one] for row, one in named])]
        readings: Readings = {}
        for row in range(3):
            there = [one for one in read[row] if one.key == ELSEWHERE]
            together = torch.stack([read[row][one] for one in there])
            for at, one in enumerate(there):
                readings[row, one] = together, at
            own = [
                condition for place, when in whens if place == row for condition in conditions(when)
            ]
            for condition in filter(needs_record, own):
                parts[row].steering.record(condition, 0, read[row][condition.reads].tolist())
        here = {each: at for at, each in enumerate(named)}
        gates = Gates(whens, parts, here, torch.device("cpu"))
        holds = gates.hold(found, readings, Span([0] * 3, [WIDTH] * 3), WIDTH)
        for (row, when), told in zip(whens, holds.tolist(), strict=True):
            values = {one: numbers.tolist() for one, numbers in read[row].items()}
            steering = parts[row].steering
            assert told == [
                when is None or naive(when, steering, values, at) for at in range(WIDTH)
            ]
