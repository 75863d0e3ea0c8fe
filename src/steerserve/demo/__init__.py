"""The bundled demo: a very small language model, two SAEs on it, and the proof that they steer.

This package owns the paths and names of the shipped files. This module imports no tensor library. The module `build`
made the data.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import TypedDict, cast

DATA = Path(__file__).parent / "data"
MODEL_DIR = DATA / "model"
MODEL_NAME = "steerserve-demo"
CLUSTER = DATA / "documents" / "sea.cluster.json"
CLUSTER_ID = "prof_5ea5ea5ea5ea"
CIRCUIT = DATA / "documents" / "sea.circuit.json"
CIRCUIT_ID = "circ_5ea5ea5ea5ea"
"""The example documents, which `documents` made, and the ids of their records."""
CORPUS = DATA / "corpus.msgpack.xz"
CORPUS_ID = "corpus_5ea5ea5ea5ea"
"""The results of the example corpus, which `corpus_results` made, and the id of its record."""


@dataclass(frozen=True, slots=True)
class DemoSae:
    """One shipped SAE: its folder (SAELens layout) and the layer whose output the SAE reads."""

    name: str
    path: Path
    layer: int
    labels: Path


def saes() -> list[DemoSae]:
    """The shipped SAEs, lowest layer first."""
    shipped = []
    for path in (DATA / "saes").glob("resid_post_layer_*"):
        layer = int(path.name.removeprefix("resid_post_layer_"))
        shipped.append(DemoSae(path.name, path, layer, path / "labels.json"))
    return sorted(shipped, key=lambda sae: sae.layer)


def labels(sae: DemoSae) -> dict[int, dict[str, object]]:
    """The labels of an SAE's features by feature index."""
    entries = json.loads(sae.labels.read_text(encoding="utf-8"))
    return {int(index): entry for index, entry in entries.items()}


def report() -> dict[str, object]:
    """The figures measured when the data was built."""
    figures: dict[str, object] = json.loads((DATA / "report.json").read_text(encoding="utf-8"))
    return figures


class Proof(TypedDict):
    """The proof for the feature of a topic: SAE name, strength, and prompts with shares."""

    sae: str
    layer: int
    feature_idx: int
    strength: float
    topic: str
    samples: int
    sampling: dict[str, float]
    prompts: list[dict[str, object]]


def proof() -> Proof:
    return cast("Proof", report()["proof"])
