"""Several SAEs at once: what they would take, what they are kept in, and who is missing."""

from __future__ import annotations

import pytest

from steerserve.rules.saes import sets as sae_set
from steerserve.rules.saes.sets import Offender, Reserves, Size
from steerserve.rules.units import MIB
from tests.refusals import refusal_of


@pytest.mark.parametrize(
    ("asked", "model", "kept"),
    [
        (None, "bfloat16", None),
        ("stored", "bfloat16", None),
        ("model", "bfloat16", "bfloat16"),
        ("model", "float32", "float32"),
        ("model", "Q4_K_M", "float16"),
        ("float16", "float32", "float16"),
    ],
)
def test_what_the_engine_is_told_to_keep_them_in(
    asked: str | None, model: str, kept: str | None
) -> None:
    assert sae_set.kept_in(asked, model) == kept


@pytest.mark.parametrize(
    ("size", "mib"),
    [
        (Size(2304, 16384, "float16"), 158.4),
        (Size(2304, 16384, "float32"), 316.8),
        (Size(4096, 131072, "bfloat16"), 2252.8),
        # what is not known counts as the widest
        (Size(2304, 16384, ""), 316.8),
    ],
)
def test_encoder_and_decoder_and_a_tenth_are_counted(size: Size, mib: float) -> None:
    assert size.projected_bytes / MIB == pytest.approx(mib)


@pytest.mark.parametrize(("free", "fits"), [(317, True), (316, False), (0, False)])
def test_all_of_them_have_to_fit(free: int, fits: bool) -> None:
    sizes = [Size(2304, 16384, "float16")] * 2
    if fits:
        sae_set.check_memory(sizes, free, "cuda:0", 4096, Reserves(512, 64))
        return
    refusal = refusal_of(
        lambda: sae_set.check_memory(sizes, free, "cuda:0", 4096, Reserves(512, 64))
    )
    assert refusal.code == "INSUFFICIENT_MEMORY"
    assert refusal.details["projected_mb"] == 317
    assert refusal.details["available_mb"] == free
    assert refusal.details["kv_reserve_mb"] == 512
    assert refusal.details["working_reserve_mb"] == 64


@pytest.mark.parametrize(
    ("status", "reason"),
    [
        ("cached", None),
        ("attached", None),
        ("downloading", "it is still being downloaded"),
        ("error", "its download failed (no space)"),
    ],
)
def test_why_an_sae_is_not_here(status: str, reason: str | None) -> None:
    assert sae_set.not_ready(status, "no space") == reason


def test_every_offender_is_named() -> None:
    sae_set.check_members([], "SAE_INCOMPATIBLE")
    offenders = [Offender("sae_1", 3, "too wide"), Offender("sae_2", 4, "not here")]
    refusal = refusal_of(sae_set.check_members, offenders, "SAE_INCOMPATIBLE")
    assert refusal.code == "SAE_INCOMPATIBLE"
    assert refusal.message == "sae_1 at layer 3: too wide; sae_2 at layer 4: not here"
    assert refusal.details["offenders"] == [
        {"layer": 3, "sae_id": "sae_1", "reason": "too wide"},
        {"layer": 4, "sae_id": "sae_2", "reason": "not here"},
    ]
