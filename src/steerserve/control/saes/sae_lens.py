"""Which SAE of the hub a client means by a name of SAELens."""

from __future__ import annotations

import asyncio

from steerserve.files.sae_lens import read_registry
from steerserve.nouns.saes.form import SaeLensSae
from steerserve.rules.saes.sae_lens import resolve


async def resolve_sae_lens(name: str) -> SaeLensSae:
    """The SAE that `release/id` means. The hub is not asked.

    Raises:
        Refusal: VALIDATION_ERROR for an unknown name, SAE_INCOMPATIBLE for an SAE that can never be attached.
    """
    return await asyncio.to_thread(_resolve, name)


def _resolve(name: str) -> SaeLensSae:
    registry = read_registry()
    named = resolve(registry, name)
    return SaeLensSae(
        name=named.name,
        repository_id=named.repo_id,
        file_path=named.path,
        model=named.model,
        neuronpedia_id=named.neuronpedia_id,
        overrides=named.overrides,
        version=registry.version,
    )
