"""What edits add to a decode step: `python -m benchmarks.edit_steps`.

The running batch decodes in this process, as an engine does, without HTTP, control plane and client. Blocks of steps of
rows with edits are timed in turns with blocks of the same rows without, because the speed of a machine changes within
minutes.
"""

from __future__ import annotations

import json
import tempfile
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import numpy as np
import torch

from benchmarks.kept import Kept
from benchmarks.step_times import D_SAE, KEY, WATCHED, Decoding, compare, load, random_sae
from steerserve import messages as m
from steerserve.rules.steering.edits import Condition, Edit, Feature, Target, ordered
from steerserve.rules.steering.positions import Positions, Selection
from steerserve.rules.steering.vector import Direction
from steerserve.worker import memory
from steerserve.worker.hooks.hooks import HookedSaes
from steerserve.worker.model.checkpoint import Checkpoint
from steerserve.worker.sae import sites

Plans = Callable[[int], m.Plan]
"""The plan of each row by its number."""

GENERATED = Positions(Selection(names=("generated",)))
OF_EIGHT = 4


def plans(width: int, layers: int) -> Mapping[str, Plans]:
    """The kinds of rows, each row with features and directions of its own."""
    middle = layers // 2

    def clamp(number: int, **more: Any) -> Edit:
        return Edit(Feature(KEY, number % D_SAE), Target(factor=0.0, offset=1.0), **more)

    def ablation(number: int, layer: int = middle) -> Edit:
        numbers = np.random.default_rng(number).normal(size=width).astype("<f4")
        return Edit(Direction(layer, sites.RESID_POST, numbers.tobytes()), Target(factor=0.0))

    def gate(number: int) -> Condition:
        return Condition(Feature(KEY, D_SAE - number), above=0.0)

    def edited(*edits: Edit) -> m.Plan:
        return m.Overlay(None, {}, ordered(edits))

    return {
        "one add each": lambda n: m.Overlay(None, {KEY: {n: 1.0}}),
        "one clamp each": lambda n: edited(clamp(n)),
        "one ablation each": lambda n: edited(ablation(n)),
        "one gated clamp each": lambda n: edited(clamp(n, when=gate(n), positions=GENERATED)),
        "8 edits each": lambda n: edited(
            *(clamp(OF_EIGHT * n + k) for k in range(OF_EIGHT)),
            *(ablation(OF_EIGHT * n + k) for k in range(OF_EIGHT)),
        ),
        "an ablation at every layer each": lambda n: edited(
            *(ablation(n, layer) for layer in range(layers))
        ),
        "one row with 8 edits beside plain rows": lambda n: (
            edited(*(clamp(n + k) for k in range(2 * OF_EIGHT))) if n == 1 else m.Suppressed()
        ),
    }


@torch.inference_mode()
def measured(model: Checkpoint) -> dict[str, Any]:
    """For each kind, the steps of its rows and of plain rows, block by block."""
    saes = HookedSaes(model.dtype, find_site=partial(sites.find, model.model, model.layers))
    middle = sites.find(model.model, model.layers, sites.RESID_POST, model.layers // 2)
    saes.attach(KEY, random_sae(model.hidden_size), middle)
    found = {}
    for name, plan_of in plans(model.hidden_size, model.layers).items():
        # rows of their own for each kind, because a row writes so many tokens only
        plain = Decoding(model, WATCHED, 0, saes)
        found[name] = compare(Decoding(model, WATCHED, 0, saes, plan_of=plan_of), plain)
    return {"rows": WATCHED, "d_sae": D_SAE, "kinds": found}


def main() -> None:
    kept = Kept("step-edits", threads=torch.get_num_threads())
    memory.keep_freed()  # as the engine process does
    with tempfile.TemporaryDirectory() as scratch:
        model = load(scratch)
        edits = measured(model)
    print(json.dumps(edits, indent=2))
    kept.end({"step-edits": edits})


if __name__ == "__main__":
    main()
