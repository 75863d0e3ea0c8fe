"""Circuits on the two SAEs of the demo model: their documents, and requests that import and activate them."""

from __future__ import annotations

import copy
from typing import Any

from steerserve import demo
from tests.service import Running

LOW, HIGH = demo.saes()
D_SAE = 1024


def feature(index: int, strength: float = 8.0, **more: Any) -> dict[str, Any]:
    return {"feature_idx": index, "strength": strength, **more}


def document(rung: int = 2, low: int = 70, high: int = 31, **changes: Any) -> dict[str, Any]:
    """A circuit of two features on the two layers of the demo SAEs."""
    made = {
        "kind": "mistudio.circuit-definition",
        "schema_version": "1",
        "name": "rain to umbrella",
        "narrative": "made for a test",
        "model": {"hf_id": None, "mistudio_model_id": "m_1"},
        "saes": [
            {"layer": LOW.layer, "n_features": D_SAE},
            {"layer": HIGH.layer, "n_features": None},
        ],
        "members": [
            {"layer": LOW.layer, "feature": feature(low, 8.0), "cluster_name": None},
            {
                "layer": HIGH.layer,
                "member_kind": "cluster_ref",
                "expanded_members": [feature(high, -6.0, sign=-1)],
            },
        ],
        "edges": [
            {
                "up": {"layer": LOW.layer, "feature_idx": low},
                "down": {"layer": HIGH.layer, "feature_idx": high},
                "rung": rung,
                "effect_size": 0.4,
            }
        ],
        "budget": {"intensity": 1.0, "intensity_range": [0.2, 1.4], "layers": {}},
        "discovery": None,
        "later": {"unknown": [1, {"key": None}], "number": 0.1},
    }
    return made | copy.deepcopy(changes)


def detach(live: Running) -> None:
    entries = live.data("GET", "/api/saes/attachments")["entries"]
    for sae_id in {attached["sae_id"] for attached in entries}:
        live.data("POST", f"/api/saes/{sae_id}/detach")


def attach(live: Running, saes: list[str], *layers: int) -> None:
    wanted = [
        {"sae_id": sae_id, "layer": sae.layer}
        for sae_id, sae in zip(saes, (LOW, HIGH), strict=True)
        if sae.layer in (layers or (LOW.layer, HIGH.layer))
    ]
    live.data("POST", "/api/saes/attach-set", {"saes": wanted})


def imported(live: Running, **changes: Any) -> str:
    return str(live.data("POST", "/api/circuits/import", document(**changes))["id"])


def activated(live: Running, circuit_id: str, **options: bool) -> dict[str, Any]:
    query = "&".join(f"{name}={str(value).lower()}" for name, value in options.items())
    answer = live.data("POST", f"/api/circuits/{circuit_id}/activate?{query}")
    assert isinstance(answer, dict)
    return answer
