"""The shape of a circuit document: which fields it may have, and the bounds of their values."""

from __future__ import annotations

from steerserve.rules.bounds import CIRCUIT_EDGES, CIRCUIT_ENTRIES, CIRCUIT_LAYERS, CLUSTER_MEMBERS
from steerserve.rules.steering import members
from steerserve.rules.steering.documents import (
    Check,
    anything,
    fields,
    flag,
    items,
    mapping,
    number,
    one_of,
    text,
    whole,
)
from steerserve.rules.steering.evidence import HIGHEST
from steerserve.rules.steering.intensity import INTENSITY_MAXIMUM

KIND = "mistudio.circuit-definition"
NAME_MAXIMUM = 200

_TEXT_MAXIMUM = 2000

_LAYER = whole()
_END = fields(
    {"layer": _LAYER},
    {"feature_idx": whole(), "cluster_profile_id": text(), "kind": one_of("feature", "cluster")},
)
_EDGE = fields(
    {"up": _END, "down": _END},
    {
        "type": text(),
        "rung": whole(0, HIGHEST),
        "tested_and_failed": items(whole(0, HIGHEST)),
        "effect_size": number(),
        "weight_prior": number(),
        "coactivation": fields(
            {},
            {
                "pmi": number(),
                "lift": number(),
                "spearman": number(),
                "support": number(0),
                "null_percentile": number(),
                "replicated_heldout": anything,
                "corpus_ref": text(),
            },
        ),
        "attribution": fields(
            {}, {"method": text(), "score": number(), "sign_consistency": number(0, 1)}
        ),
        "position": fields(
            {},
            {"mediating_heads": items(whole()), "source_role": text(), "target_role": text()},
        ),
        "type_signals": mapping(anything),
        "validation_manifest_ref": text(),
    },
)
_MEMBER = fields(
    {"layer": _LAYER},
    {
        "member_kind": one_of("feature_ref", "cluster_ref"),
        "feature": members.MEMBER,
        "cluster_profile_id": text(),
        "cluster_name": text(),
        "expanded_members": items(members.MEMBER, most=CLUSTER_MEMBERS),
    },
)
_PROBE = fields({"prompt": text(1, _TEXT_MAXIMUM), "expected": text(1, _TEXT_MAXIMUM)}, {})
_CALIBRATION = fields(
    {"onset": number(0), "sweet_spot": number(0), "cliff": number(0)},
    {
        "provisional": flag,
        "non_monotone": flag,
        "step_budget": whole(1),
        "judge_metric_id": text(),
        "manifest_ref": text(),
        "probe_set": items(_PROBE),
    },
)
_FAITHFULNESS = fields(
    {},
    {
        "necessity": number(),
        "sufficiency": number(),
        "sufficiency_k": whole(),
        "metric_id": text(),
        "manifest_ref": text(),
    },
)
_DISCOVERY = fields(
    {},
    {
        "mode": one_of("seeded", "open"),
        "granularity": one_of("feature", "cluster"),
        "corpus_ref": text(),
        "split": anything,
        "discovered_at": anything,
        "thresholds": anything,
    },
)
_BUDGET = fields(
    {},
    {
        "layers": mapping(fields({}, members.BUDGET_FIELDS)),
        "formula_id": text(),
        "intensity": number(0, INTENSITY_MAXIMUM),
    },
)
SHAPE: Check = fields(
    {
        "name": members.name_shape(NAME_MAXIMUM),
        "saes": items(members.SAE, 1, CIRCUIT_LAYERS),
        "members": items(_MEMBER, 1, CIRCUIT_ENTRIES),
    },
    {
        "kind": one_of(KIND),
        "schema_version": one_of(members.SCHEMA_VERSION),
        "narrative": members.NARRATIVE,
        "model": members.MODEL,
        "edges": items(_EDGE, most=CIRCUIT_EDGES),
        "budget": _BUDGET,
        "calibration": _CALIBRATION,
        "faithfulness": _FAITHFULNESS,
        "discovery": _DISCOVERY,
        "provenance": members.PROVENANCE,
    },
)
