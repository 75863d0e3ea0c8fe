"""What reading raw activations adds to a decode step: `python -m benchmarks.raw_reads`.

The running batch decodes in this process, as an engine does, without HTTP, control plane and client. Blocks of steps of
rows that read are timed in turns with blocks of the same rows that do not, because the speed of a machine changes within
minutes. A row that reads keeps its values on the host, as it does until its answer ends.
"""

from __future__ import annotations

import json
import tempfile
from collections.abc import Mapping
from functools import partial
from typing import Any

import msgspec
import torch

from benchmarks.kept import Kept
from benchmarks.step_times import SIZE, Decoding, compare, load
from steerserve.parts.activations_raw.form import ACTIVATIONS_RAW, RawReads, RawSite
from steerserve.rules.saes.sites import MLP_OUT, RESID_POST
from steerserve.rules.steering.positions import Positions, Selection
from steerserve.worker import memory
from steerserve.worker.hooks.hooks import HookedSaes
from steerserve.worker.model.checkpoint import Checkpoint
from steerserve.worker.sae import sites

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


def kinds(layers: int) -> Mapping[str, Any]:
    """What each row reads, by its number."""
    return {
        "nothing": lambda _: {},
        "every row reads resid_post of all layers": lambda _: reads(RESID_POST, layers),
        "one row reads resid_post of all layers": lambda n: (
            reads(RESID_POST, layers) if n == 1 else {}
        ),
        "one row reads mlp_out of all layers": lambda n: reads(MLP_OUT, layers) if n == 1 else {},
    }


@torch.inference_mode()
def measured(model: Checkpoint) -> dict[str, Any]:
    """For each kind, the steps of its rows and of plain rows, block by block."""
    find = partial(sites.find, model.model, model.layers)
    saes = HookedSaes(model.dtype, find_site=find)
    found = {}
    for name, parts_of in kinds(model.layers).items():
        plain = Decoding(model, ROWS, 0, saes)
        found[name] = compare(Decoding(model, ROWS, 0, saes, parts_of=parts_of), plain)
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
