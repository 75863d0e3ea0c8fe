"""The bundled demo: copied into the data folder, registered, loaded, its SAE attached."""

from __future__ import annotations

import asyncio
import shutil
from dataclasses import dataclass
from pathlib import Path

from steerserve import __version__, demo
from steerserve.control.attachments import Attachments
from steerserve.control.catalog import Registry
from steerserve.control.conductor import Conductor
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
    registry: Registry, conductor: Conductor, attachments: Attachments, home: Path
) -> Ready:
    """Make the demo ready.

    Raises:
        Refusal: what a load or an attach refuses.
    """
    folder = await asyncio.to_thread(_copied, home / "demo")
    row = await _registered(registry, folder / "model")
    ids = {}
    for sae in demo.saes():
        registered, _ = await registry.add_sae(str(folder / "saes" / sae.name))
        ids[sae.name] = registered
    async with conductor.use(row):
        proof = demo.proof()
        attached = await attachments.attach(ids[proof["sae"]], proof["layer"])
    return Ready(row.name, attached.sae_id, attached.layer, proof["feature_idx"], proof["strength"])


def _copied(target: Path) -> Path:
    """The demo's files under the data folder; copied anew for another version of the package."""
    stamp = target / "VERSION"
    if stamp.is_file() and stamp.read_text() == __version__:
        return target
    staging = target.with_name("demo.new")
    shutil.rmtree(staging, ignore_errors=True)
    shutil.copytree(demo.DATA, staging)
    (staging / "VERSION").write_text(__version__)
    shutil.rmtree(target, ignore_errors=True)
    staging.rename(target)
    return target


async def _registered(registry: Registry, folder: Path) -> ModelRow:
    path = str(await asyncio.to_thread(folder.resolve))
    for row in await registry.models():
        if row.local_path == path:
            return row
    return await registry.add_model(
        path, quantization="FP16", custom_name=demo.MODEL_NAME, trust_remote_code=False
    )
