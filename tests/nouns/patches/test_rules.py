"""The cells of a patch sweep."""

from __future__ import annotations

from dataclasses import replace

import pytest

from steerserve.errors import Refusal
from steerserve.nouns.patches.rules import Cell, Sweep, cells_of, check_sweep
from steerserve.rules.saes.sites import ModelSite

LAYERS = 4
KNOWN = [
    ModelSite("embed", (0,), 8, None, "embed_tokens", True),
    ModelSite("resid_post", (0, 1, 2, 3), 8, None, "layers.{layer}", True),
    ModelSite("hook_z", (1, 3), 8, 2, "layers.{layer}.self_attn.o_proj", True),
]
"""The sites of a model in which every second layer has no attention."""

SWEEP = Sweep(["resid_post", "hook_z", "embed"], "all", [1], False, {0: 0, 1: 1}, 2)


def test_a_sweep_of_all_layers_has_cells_where_a_site_is() -> None:
    check_sweep(SWEEP, LAYERS, KNOWN, 7 * 2)
    cells = cells_of(SWEEP, KNOWN)
    assert [(one.site, one.layer) for one in cells] == [
        *(("resid_post", layer) for layer in range(LAYERS)),
        ("hook_z", 1),
        ("hook_z", 3),
        ("embed", 0),
    ]
    with pytest.raises(Refusal, match="7 cells x 2 tokens are 14 tokens; at most 13"):
        check_sweep(SWEEP, LAYERS, KNOWN, 13)
    heads = replace(SWEEP, sites=["hook_z"], has_heads=True)
    assert cells_of(heads, KNOWN) == [
        Cell("hook_z", layer, (1,), head) for layer in (1, 3) for head in (0, 1)
    ]


def test_a_layer_without_a_site_is_refused_by_name() -> None:
    with pytest.raises(Refusal, match="no hook_z at layer 2; it has it at 1, 3") as refused:
        check_sweep(replace(SWEEP, layers=[1, 2]), LAYERS, KNOWN, 100)
    assert refused.value.param == "layers[1]"
    check_sweep(replace(SWEEP, layers=[1, 3]), LAYERS, KNOWN, 100)
