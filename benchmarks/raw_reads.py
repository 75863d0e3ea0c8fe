"""What reading and replacing raw activations adds to a decode step: `python -m benchmarks.raw_reads`.

The running batch decodes in this process, as an engine does, without HTTP, control plane and client. Blocks of steps of
rows that read or write are timed in turns with blocks of the same rows that do not, because the speed of a machine
changes within minutes. A row that reads keeps its values on the host, as it does until its answer ends.
"""

from __future__ import annotations

import json
import tempfile
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import msgspec
import numpy as np
import torch

from benchmarks.kept import Kept
from benchmarks.step_times import SIZE, Decoding, compare, load
from steerserve import messages as m
from steerserve.parts.activations_raw.form import ACTIVATIONS_RAW, RawReads, RawSite
from steerserve.rules.saes.sites import MLP_OUT, PATTERN, RESID_POST, K, Z
from steerserve.rules.steering.edits import Edit, Source, direction_target
from steerserve.rules.steering.positions import Positions, Selection
from steerserve.rules.steering.vector import Direction
from steerserve.worker import memory
from steerserve.worker.hooks.hooks import HookedSaes
from steerserve.worker.model.checkpoint import Checkpoint
from steerserve.worker.sae import sites
from steerserve.worker.sae.sites import Site

ROWS = 32
UNBOUNDED = 1 << 40
GENERATED = Positions(Selection(names=("generated",)))


def reads(site: str, layers: int) -> dict[str, msgspec.Raw]:
    """The part of a request that reads a site at all layers, at every generated position."""
    asked = tuple(RawSite("", site, layer) for layer in range(layers))
    return ACTIVATIONS_RAW.ask(
        RawReads(
            asked,
            GENERATED,
            is_before=False,
            dtype="float32",
            is_listed=False,
            max_bytes=UNBOUNDED,
            all_max_bytes=UNBOUNDED,
        )
    )


def writes(site: str, find: Callable[[str, int], Site], layers: Sequence[int]) -> m.Plan:
    """The plan of a request that replaces the value of a site at these layers, at every generated position."""
    numbers = np.random.default_rng(0)
    edits = []
    for layer in layers:
        values = numbers.normal(size=find(site, layer).width).astype("<f4")
        at, target = Direction(layer, site, values.tobytes()), direction_target("replace", 0.5)
        edits.append(Edit(at, target, positions=GENERATED, number=layer, source=Source(1)))
    return m.Overlay(None, {}, tuple(edits))


def kinds(find: Callable[[str, int], Site], layers: int) -> Mapping[str, dict[str, Any]]:
    """What each row reads or writes, by its number."""

    def one(made: Any, otherwise: Any) -> Callable[[int], Any]:
        return lambda number: made if number == 1 else otherwise

    found: dict[str, dict[str, Any]] = {
        "nothing": {},
        "every row reads resid_post of all layers": {
            "parts_of": lambda _: reads(RESID_POST, layers)
        },
    }
    for site in (RESID_POST, MLP_OUT, PATTERN):
        parts = {"parts_of": one(reads(site, layers), {})}
        found[f"one row reads {site} of all layers"] = parts
    for site in (Z, K):
        for name, some in {"one layer": [layers // 2], "all layers": range(layers)}.items():
            plans = {"plan_of": one(writes(site, find, some), m.Suppressed())}
            found[f"one row writes {site} of {name}"] = plans
    return found


@torch.inference_mode()
def measured(model: Checkpoint) -> dict[str, Any]:
    """For each kind, the steps of its rows and of plain rows, block by block."""
    find = partial(sites.find, model.model, model.layers)
    saes = HookedSaes(model.dtype, find_site=find)
    found = {}
    for name, asked in kinds(find, model.layers).items():
        plain = Decoding(model, ROWS, 0, saes)
        found[name] = compare(Decoding(model, ROWS, 0, saes, **asked), plain)
    return {"rows": ROWS, "layers": model.layers, "kinds": found}


def main() -> None:
    kept = Kept("step-raw-reads", threads=torch.get_num_threads())
    memory.keep_freed()  # as the engine process does
    with tempfile.TemporaryDirectory() as scratch:
        model = load(scratch)
        steps = measured(model)
    print(json.dumps(steps, indent=2))
    kept.end({"model": SIZE, "step-raw-reads": steps})


if __name__ == "__main__":
    main()
