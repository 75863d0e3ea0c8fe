"""Attaches an SAE, from its files to its hook: claims, site, memory, weights, self-check. A refused attach leaves
nothing behind."""

from __future__ import annotations

import torch

from steerserve.errors import Refusal
from steerserve.messages import Attached, Claims, PlacedSae
from steerserve.rules.saes.sites import RESID_POST, objection
from steerserve.rules.units import MIB
from steerserve.worker import memory
from steerserve.worker.hooks.hooks import HookedSaes
from steerserve.worker.model import budget
from steerserve.worker.model.budget import SaeRoom
from steerserve.worker.model.checkpoint import Checkpoint
from steerserve.worker.sae import formats, selfcheck, sites
from steerserve.worker.sae.canonical import NEEDS_K
from steerserve.worker.sae.selfcheck import Examined
from steerserve.worker.sae.sites import Site

HOST = torch.device("cpu")


def attach(placed: PlacedSae, model: Checkpoint, saes: HookedSaes, room: SaeRoom) -> Attached:
    """Put the SAE at its site, and return its facts there. The facts in its headers are checked before its tensors are
    read.

    Raises:
        Refusal: SAE_INCOMPATIBLE (a kind that cannot be attached, a site that the model does not have, a width that
            differs from the width of the site), SAE_LOAD_FAILED, INSUFFICIENT_MEMORY.
    """
    claims = formats.inspect(placed.source)
    site = _site(claims, model, placed.layer)

    def check_room(dtype: str | None) -> None:
        room.check_free(HOST, budget.sae_bytes(claims, dtype))
        if site.device != HOST:
            room.check_free(site.device, budget.encoder_bytes(claims, dtype))

    dtype, warnings = budget.sae_dtype(claims, placed.dtype, check_room)
    room.check_read(claims.size_bytes)
    try:
        made = _made(placed, claims, model, site, dtype)
    except (RuntimeError, MemoryError) as error:
        if not memory.is_exhausted(error):
            raise
        memory.recover(error)
        device, size = memory.exhausted(error, site.device), budget.sae_bytes(claims, dtype)
        why = f"{device} ran out of memory while the SAE was read and checked"
        raise room.refusal(why, device, size, memory.free(device)) from error
    sae = made.sae
    saes.attach(placed.key, sae, site)
    return Attached(
        layer_module_path=site.path,
        memory_mb=max(1, round(sae.size_bytes / MIB)),
        d_in=sae.d_in,
        d_sae=sae.d_sae,
        warnings=[*claims.warnings, *warnings, *made.warnings],
        check=made.check,
        dtype=str(sae.dtype).removeprefix("torch."),
        site=site.name,
        is_calibrated=sae.is_calibrated,
        k=sae.k if sae.activation in NEEDS_K else None,
    )


def _made(
    placed: PlacedSae, claims: Claims, model: Checkpoint, site: Site, dtype: str | None
) -> Examined:
    """The SAE with its tensors, suited to the site and examined where `placed` asks for that."""
    kept_in: torch.dtype | None = None if dtype is None else getattr(torch, dtype)
    sae = formats.load(placed.source, kept_in, is_asked=placed.dtype is not None)
    overrides = placed.source.overrides
    sae, warnings = selfcheck.suited(model, sae, site, overrides)
    if not placed.check:
        return Examined(sae, {}, warnings)
    examined = selfcheck.examine(model, sae, site, claims, overrides)
    return Examined(examined.sae, examined.check, [*warnings, *examined.warnings])


def _site(claims: Claims, model: Checkpoint, layer: int) -> Site:
    if claims.reason is not None:
        raise Refusal("SAE_INCOMPATIBLE", claims.reason, format=claims.format)
    if claims.site is None and claims.hook_name is not None:
        raise Refusal(
            "SAE_INCOMPATIBLE",
            f"the SAE reads at {claims.hook_name!r}, {objection(claims.hook_name)}; give `site` in `overrides`",
            hook_name=claims.hook_name,
        )
    site = sites.find(model.model, model.layers, claims.site or RESID_POST, layer)
    if claims.d_in != site.width:
        raise Refusal(
            "SAE_INCOMPATIBLE",
            f"the SAE reads {claims.d_in} values per token; {site.name} of this model has {site.width}",
            d_in=claims.d_in,
            width=site.width,
            site=site.name,
        )
    return site
