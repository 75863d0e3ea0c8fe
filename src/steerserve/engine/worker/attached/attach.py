"""Attaching an SAE, from its files to its hook: claims, site, memory, weights, self-check. A refusal leaves nothing
behind."""

from __future__ import annotations

import torch

from steerserve.engine.wire.messages import Attach, Attached, Claims
from steerserve.engine.worker.attached.hooks import CheckRoom, HookedSaes
from steerserve.engine.worker.model import budget
from steerserve.engine.worker.model.checkpoint import Checkpoint
from steerserve.engine.worker.sae import formats, selfcheck, sites
from steerserve.engine.worker.sae.sites import Site
from steerserve.errors import Refusal
from steerserve.rules.sae_sites import RESID_POST, objection
from steerserve.rules.units import MIB

HOST = torch.device("cpu")


def attach(command: Attach, model: Checkpoint, saes: HookedSaes, check_room: CheckRoom) -> Attached:
    """Put the SAE at its site, and return its facts there. Everything that its headers tell is checked before its
    tensors are read.

    Raises:
        Refusal: SAE_INCOMPATIBLE (a kind that cannot be attached, a site that is not there, another width),
            SAE_LOAD_FAILED, INSUFFICIENT_MEMORY.
    """
    claims = formats.inspect(command.source)
    site = _site(claims, model, command.layer)

    def check(dtype: str | None) -> None:
        check_room(HOST, budget.sae_bytes(claims, dtype))
        if site.device != HOST:
            check_room(site.device, budget.encoder_bytes(claims, dtype))

    dtype, warnings = budget.sae_dtype(claims, command.dtype, check)
    budget.check_read(claims.size_bytes)
    wanted: torch.dtype | None = None if dtype is None else getattr(torch, dtype)
    sae = formats.load(command.source, wanted, is_asked=command.dtype is not None)
    said = command.source.overrides
    sae, told = selfcheck.suited(model, sae, site, said)
    warnings = [*warnings, *told]
    figures: dict[str, float] = {}
    if command.check:
        examined = selfcheck.examine(model, sae, site, claims, said)
        sae, figures = examined.sae, examined.check
        warnings = [*warnings, *examined.warnings]
    saes.attach(command.key, sae, site)
    return Attached(
        id=command.id,
        layer_module_path=site.path,
        memory_mb=max(1, round(sae.size_bytes / MIB)),
        d_in=sae.d_in,
        d_sae=sae.d_sae,
        warnings=[*claims.warnings, *warnings],
        check=figures,
        dtype=str(sae.dtype).removeprefix("torch."),
        site=site.name,
        is_calibrated=sae.is_calibrated,
    )


def _site(claims: Claims, model: Checkpoint, layer: int) -> Site:
    if claims.reason is not None:
        raise Refusal("SAE_INCOMPATIBLE", claims.reason, format=claims.format)
    if claims.site is None and claims.hook_name is not None:
        raise Refusal(
            "SAE_INCOMPATIBLE",
            f"the SAE reads at {claims.hook_name!r}, {objection(claims.hook_name)}; give the site as an override",
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
