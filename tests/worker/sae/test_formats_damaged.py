"""Damaged and contradictory checkpoints are refused with a code that names the fault."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from steerserve.errors import Refusal
from steerserve.messages import Claims, Inspected, Refused, SaeSource, frame
from steerserve.worker.sae import formats
from tests.worker.sae import checkpoints as disk
from tests.worker.sae.checkpoints import D_IN, D_SAE, Written
from tests.worker.sae.computed import refused

# ---------------------------------------------------------------- damage


MISSHAPEN: dict[tuple[str, str], tuple[int, ...]] = {
    ("standard", "W_dec"): (D_SAE,),
    ("jumprelu", "W_enc"): (D_IN, D_SAE + 1),
    ("jumprelu", "W_dec"): (D_SAE, D_IN, 1),
    ("jumprelu", "b_enc"): (D_SAE - 1,),
    ("jumprelu", "b_dec"): (1, D_IN),
    ("jumprelu", "threshold"): (3,),
    **{("gated", part): (D_SAE - 1,) for part in ("b_gate", "b_mag", "r_mag")},
}
"""A shape that does not fit, for each tensor of each kind."""


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize(("kind", "part"), MISSHAPEN)
def test_numbers_that_are_not_finite_are_refused_by_name(
    tmp_path: Path, kind: str, part: str, value: float
) -> None:
    p = disk.arrays(kind)
    p[part].flat[7] = value
    written = [disk.saelens(tmp_path / "a", kind, p=p)]
    if kind == "jumprelu":
        written.append(disk.gemma_scope(tmp_path / "b", p=p))
    for one in written:
        refusal = refused(one.source())
        assert refusal.code == "SAE_LOAD_FAILED"
        assert part in refusal.message


@pytest.mark.parametrize(("kind", "part"), MISSHAPEN)
@pytest.mark.parametrize("read", [formats.inspect, formats.load])
def test_a_misshapen_or_missing_tensor_is_refused_by_name(
    tmp_path: Path, kind: str, part: str, read: Callable[[SaeSource], object]
) -> None:
    p = disk.arrays(kind)
    wrong = p | {part: np.zeros(MISSHAPEN[kind, part], np.float32)}
    without = {name: array for name, array in p.items() if name != part}
    misshapen = [disk.saelens(tmp_path / "a", kind, p=wrong, d_in=D_IN, d_sae=D_SAE)]
    missing = [disk.saelens(tmp_path / "b", kind, p=without, d_in=D_IN, d_sae=D_SAE)]
    if kind == "jumprelu":
        misshapen.append(disk.gemma_scope(tmp_path / "c", p=wrong))
        missing.append(disk.gemma_scope(tmp_path / "d", p=without))
    for one in misshapen:
        assert refused(one.source(), read).code == "SAE_LOAD_FAILED"
    for one in missing:
        # what is inspected may lack a threshold, which can be given
        reading = formats.load if part == "threshold" else read
        assert part in refused(one.source(), reading).message


@pytest.mark.parametrize("dtype", [torch.int32, torch.int8, torch.bool])
def test_weights_that_are_no_floats_are_refused(tmp_path: Path, dtype: torch.dtype) -> None:
    values = disk.tensors(disk.arrays())
    values["W_enc"] = values["W_enc"].to(dtype)
    refusal = refused(disk.raw(tmp_path, values).source(activation="relu", subtract_b_dec=False))
    assert refusal.code == "SAE_LOAD_FAILED"
    assert "W_enc" in refusal.message


@pytest.mark.parametrize("k", [D_SAE + 1, 10**6])
def test_more_active_features_than_there_are_are_refused(tmp_path: Path, k: int) -> None:
    assert (
        refused(disk.qwen_scope(tmp_path, k=k).source(), formats.inspect).code == "SAE_LOAD_FAILED"
    )


def test_an_empty_matrix_is_refused(tmp_path: Path) -> None:
    p = {name: array[..., :0] for name, array in disk.arrays().items()}
    p["W_dec"] = np.zeros((0, D_IN), np.float32)
    source = disk.saelens(tmp_path, p=p).source()
    assert refused(source, formats.inspect).code == "SAE_LOAD_FAILED"


VALUES = [
    *(None, True, -1, 0, 3, 2.5, 10**30, 10**400, 1e400, "", "nothing", "topk", "\ud800"),
    *("x" * 1000, [], ["a"], {}, {"in": 1}),
]


@pytest.mark.parametrize(
    ("write", "file"),
    [
        (disk.saelens, "cfg.json"),
        (disk.saelens_older, "cfg.json"),
        (disk.mistudio, "cfg.json"),
        (disk.sparsify, "cfg.json"),
        (disk.gemma_scope_2, "config.json"),
        (disk.llama_scope, "hyperparams.json"),
        (disk.llamascopium, "config.json"),
        (disk.dictionary_learning, "config.json"),
    ],
)
def test_any_value_of_any_field_is_read_or_refused_with_a_code(
    tmp_path: Path, write: Callable[..., Written], file: str
) -> None:
    written = write(tmp_path)
    path = written.path / file
    whole = path.read_text()
    for name in sorted(set(re.findall(r'"(\w+)": ', whole))):
        for value in VALUES:
            path.write_text(json.dumps(with_field(json.loads(whole), name, value)))
            outcome(written)


def outcome(written: Written) -> None:
    """Inspect and load; whatever comes of it has a code and crosses the process border."""
    for read in (formats.inspect, formats.load):
        try:
            claims = read(written.source())
        except Refusal as refusal:
            if refusal.code not in ("SAE_LOAD_FAILED", "SAE_INCOMPATIBLE"):
                raise
            assert frame(Refused(1, refusal.code, refusal.message, None, refusal.details))  # noqa: PT017
        else:
            assert not isinstance(claims, Claims) or frame(Inspected(1, claims))


def with_field(config: Any, name: str, value: Any) -> Any:
    if not isinstance(config, dict):
        return config
    return {n: value if n == name else with_field(v, name, value) for n, v in config.items()}


def test_names_of_tensors_that_no_encoding_takes_are_told_all_the_same(tmp_path: Path) -> None:
    written = disk.raw(tmp_path, {"\ud800": torch.zeros(2), "x" * 5000: torch.zeros(3)})
    refusal = refused(written.source(), formats.inspect)
    assert frame(Refused(1, refusal.code, refusal.message, None, refusal.details))
    assert sorted(refusal.details["tensors"].values()) == [[2], [3]]
