"""Loading one model into an engine: what is checked before anything is touched, and what the engine is told."""

from __future__ import annotations

import asyncio

from steerserve.control.bus import Bus, LoadProgress
from steerserve.control.resident import Resident
from steerserve.engine.client import Launcher
from steerserve.engine.messages import Loaded
from steerserve.errors import Refusal
from steerserve.hub import local
from steerserve.settings import Settings
from steerserve.store.catalog import ModelRow, utc_now


async def check_loadable(row: ModelRow) -> None:
    """Everything that can refuse a load before the resident model is touched.

    Raises:
        Refusal: MODEL_BUSY, UNSUPPORTED_QUANTIZATION, INVALID_LOCAL_PATH.
    """
    if row.status == "downloading":
        raise Refusal("MODEL_BUSY", "the model is still being downloaded", status=row.status)
    if row.quantization != "FP16":
        raise Refusal(
            "UNSUPPORTED_QUANTIZATION",
            f"{row.quantization} cannot be applied by this engine; register the model as FP16",
            quantization=row.quantization,
        )
    await asyncio.to_thread(lambda: local.read_model(local.resolve(row.local_path or "")))


async def fill(coming: Resident, launcher: Launcher, settings: Settings, bus: Bus) -> Loaded:
    """Start an engine and load the model into it; the engine is the resident's from its start on.

    Raises:
        Refusal: what the load refuses.
        TimeoutError: after LOAD_TIMEOUT.
    """
    coming.engine = await launcher.launch()
    async with asyncio.timeout(settings.load_timeout):
        coming.facts = await coming.engine.load(
            lambda p: bus.publish(LoadProgress(coming.row.id, p.stage, p.percent)),
            path=coming.row.local_path or "",
            quantization=coming.row.quantization,
            trust_remote_code=coming.row.trust_remote_code,
            threads=settings.torch_threads,
            kv_cache_mb=settings.kv_cache_mb,
            min_context=settings.transformers_min_context,
            prefix_cache_mb=settings.prefix_cache_mb,
            grammar_cache=settings.structured_output_grammar_cache,
        )
    coming.loaded_at = utc_now()
    return coming.facts


def as_refusal(error: Exception, *, has_unloaded: bool) -> Refusal:
    """What ended a load, as its requesters are told it.

    Once another model was unloaded for it, it is a failed load whatever the reason; `details.cause` has the code.
    """
    if isinstance(error, TimeoutError):
        return Refusal("MODEL_LOAD_FAILED", "the load took longer than LOAD_TIMEOUT")
    if not isinstance(error, Refusal):
        return Refusal("MODEL_LOAD_FAILED", "the load failed inside the service")
    if error.code == "ENGINE_UNAVAILABLE":
        return Refusal("MODEL_LOAD_FAILED", error.message)
    if has_unloaded and error.code != "MODEL_LOAD_FAILED":
        return Refusal("MODEL_LOAD_FAILED", error.message, cause=error.code, **error.details)
    return error
