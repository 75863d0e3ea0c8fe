"""The bundled demo: copied into the data folder, registered, loaded, its SAE attached."""

from __future__ import annotations

import asyncio
import shutil
from dataclasses import dataclass
from pathlib import Path

from steerserve import __version__, demo
from steerserve.control.interventions.attachments import Attachments
from steerserve.control.library.models import Registry
from steerserve.control.library.saes import Saes
from steerserve.control.residency.conductor import Conductor
from steerserve.settings import Settings
from steerserve.store.catalog import ModelRow


@dataclass(frozen=True, slots=True)
class Ready:
    """What to try next: the feature that the demo's proof turns up, and how far."""

    model_name: str
    sae_id: str
    layer: int
    feature_idx: int
    strength: float


async def start(
    registry: Registry,
    registered: Saes,
    conductor: Conductor,
    attachments: Attachments,
    settings: Settings,
) -> Ready:
    """Make the demo ready.

    Raises:
        Refusal: what a load or an attach refuses.
    """
    model, saes = (
        folder / demo.MODEL_NAME for folder in (settings.model_cache_dir, settings.sae_cache_dir)
    )
    await asyncio.to_thread(_copy, demo.MODEL_DIR, model)
    await asyncio.to_thread(_copy, demo.DATA / "saes", saes)
    row = await _registered(registry, model)
    ids = {}
    for sae in demo.saes():
        ids[sae.name], _ = await registered.add(str(saes / sae.name))
    async with conductor.use(row):
        proof = demo.proof()
        attached = await attachments.attach(ids[proof["sae"]], proof["layer"])
    return Ready(row.name, attached.sae_id, attached.layer, proof["feature_idx"], proof["strength"])


def _copy(source: Path, target: Path) -> None:
    """Copy a folder of the package into the data folder, whole or not at all; anew for another version."""
    stamp = target / "VERSION"
    if stamp.is_file() and stamp.read_text() == __version__:
        return
    staging = target.with_name(target.name + ".new")
    shutil.rmtree(staging, ignore_errors=True)
    shutil.copytree(source, staging)
    (staging / "VERSION").write_text(__version__)
    shutil.rmtree(target, ignore_errors=True)
    staging.rename(target)


async def _registered(registry: Registry, folder: Path) -> ModelRow:
    path = str(await asyncio.to_thread(folder.resolve))
    for row in await registry.models():
        if row.local_path == path:
            return row
    return await registry.add_model(
        path, quantization="FP16", custom_name=demo.MODEL_NAME, trust_remote_code=False
    )
