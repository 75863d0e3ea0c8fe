"""Loading one model into an engine: the checks before anything changes, and the command that the engine gets."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from msgspec import structs

from steerserve.control.bus import Bus
from steerserve.control.client_paths import client_paths
from steerserve.control.residency import fitting, fitting_gguf, fitting_nodes
from steerserve.control.residency.engines import Engines
from steerserve.control.residency.events import LoadProgress
from steerserve.control.residency.resident import Resident
from steerserve.database.catalog import ModelRow
from steerserve.engines.fleet.progress import extend
from steerserve.engines.gpus import read as read_cards
from steerserve.engines.remote.facts import checkpoint_seen
from steerserve.errors import Refusal
from steerserve.files import gguf as gguf_files
from steerserve.files import local, weights
from steerserve.messages import Loaded, Progress, endings
from steerserve.messages.engine import Engine, local_pid
from steerserve.rules.inference.names import GGUF
from steerserve.rules.models import remote_code
from steerserve.rules.models import status as model_status
from steerserve.rules.models.gguf_header import Header
from steerserve.rules.residency import placement
from steerserve.rules.residency.gpus import Card
from steerserve.rules.residency.memory_fit import PlacementPlan
from steerserve.rules.residency.placement import GpuRequest
from steerserve.rules.residency.replicas import ReplicaState, ReplicaView
from steerserve.settings import Settings

ANYWHERE = GpuRequest()


@dataclass(frozen=True, slots=True)
class Prepared:
    """A load that passed all checks, and where its weights go. `folder` is the folder of a checkpoint that was checked,
    with links resolved. `barred` has the ids of nodes that must not serve the model, each with the name and the
    reason."""

    row: ModelRow
    plan: PlacementPlan
    folder: str | None = None
    header: Header | None = None
    cards: int = 0
    barred: Mapping[str, str] = field(default_factory=dict)


async def prepare(
    row: ModelRow,
    wanted: GpuRequest,
    resident: Resident | None,
    launcher: Engines,
    settings: Settings,
) -> Prepared:
    """Check everything that can refuse a load, before the resident model is touched.

    Raises:
        Refusal: REMOTE_CODE_REFUSED, MODEL_BUSY, DOWNLOAD_CANCELLED, DOWNLOAD_FAILED, INVALID_LOCAL_PATH,
            UNSUPPORTED_QUANTIZATION, GPU_NOT_FOUND, INSUFFICIENT_MEMORY, SPLIT_NOT_HONOURED,
            INVALID_GGUF_TENSOR_SPLIT, MODEL_LOAD_FAILED.
    """
    if row.trust_remote_code and not settings.may_run_remote_code:
        raise remote_code.refused_load(row.name)
    is_on_disk = row.local_path is not None
    model_status.check_load(row.status, is_on_disk, row.error_message, row.download_error)
    path = row.local_path or ""
    if launcher.has_nodes:
        return await _prepare_on_nodes(row, wanted, resident, launcher, settings)
    if row.engine == GGUF:
        header = await asyncio.to_thread(_header, path)
        seen = await launcher.gguf_cards()
        cards = await fitting.cards_now(read_cards) if seen else []
        returns = await asyncio.to_thread(_returns, resident, cards, settings)
        plan = fitting_gguf.plan(header, seen, wanted, returns, settings, known=cards)
        return Prepared(row, plan, header=header, cards=len(seen))
    folder, stored = await asyncio.to_thread(_weights, path)
    cards = await fitting.cards_now(read_cards) if fitting.built_for_cards() else []
    returns = await asyncio.to_thread(_returns, resident, cards, settings)
    fit = await fitting.plan(stored, row.quantization, wanted, returns, settings, cards=cards)
    return Prepared(row, fit.plan, str(folder))


async def _prepare_on_nodes(
    row: ModelRow,
    wanted: GpuRequest,
    resident: Resident | None,
    launcher: Engines,
    settings: Settings,
) -> Prepared:
    """The same checks for a model whose replicas run on the nodes of a cluster."""
    if row.engine == GGUF:
        why = "a GGUF model cannot be served with ENGINE_BACKEND=ray; load a checkpoint, or set ENGINE_BACKEND=local"
        raise Refusal("UNSUPPORTED_QUANTIZATION", why)
    folder, stored = await asyncio.to_thread(_weights, row.local_path or "")
    digest = await asyncio.to_thread(checkpoint_seen, str(folder))
    fleet = resident.engine.fleet if resident is not None and resident.engine else None
    planned = await fitting_nodes.plan(
        stored,
        row.quantization,
        wanted,
        settings,
        nodes=await launcher.nodes(str(folder)),
        files=None if launcher.is_fetched(str(folder)) else (str(folder), digest),
        leaving=fleet.replicas() if fleet is not None else (),
        least=launcher.least,
    )
    return Prepared(row, planned.fit.plan, str(folder), barred=planned.barred)


async def check_more_replicas(
    resident: Resident,
    views: Sequence[ReplicaView],
    more: int,
    launcher: Engines,
    settings: Settings,
) -> None:
    """Check that the nodes have room for so many replicas of the resident model beside `views`, which hold the model.
    Afterwards the launcher knows which nodes must not get one.

    Raises:
        Refusal: INSUFFICIENT_MEMORY, INVALID_LOCAL_PATH, MODEL_LOAD_FAILED, ENGINE_UNAVAILABLE.
    """
    row = resident.row
    folder, stored = await asyncio.to_thread(_weights, row.local_path or "")
    digest = await asyncio.to_thread(checkpoint_seen, str(folder))
    planned = await fitting_nodes.plan(
        stored,
        row.quantization,
        placement.parse(resident.placement.requested if resident.placement else None),
        settings,
        nodes=await launcher.nodes(str(folder)),
        files=None if launcher.is_fetched(str(folder)) else (str(folder), digest),
        leaving=[view for view in views if view.state is ReplicaState.DRAINING],
        staying=[view for view in views if view.state is not ReplicaState.DRAINING],
        least=more,
        saes_mb=sum(attachment.memory_mb for attachment in resident.attachments.values()),
    )
    launcher.barred = planned.barred


async def fill(engine: Engine, prepared: Prepared, settings: Settings, bus: Bus) -> Loaded:
    """Load the model into the engine.

    Raises:
        Refusal: whatever refuses the load; MODEL_LOAD_FAILED after LOAD_TIMEOUT, without the time in which nodes fetch
            files.
    """
    row, stage = prepared.row, ""
    try:
        async with asyncio.timeout(settings.load_timeout) as limit:

            def report(progress: Progress) -> None:
                nonlocal stage
                stage = progress.stage
                extend(limit, progress, settings.load_timeout)
                bus.publish(LoadProgress(row.id, progress.stage, progress.percent))

            facts = await engine.load(report, **_asked(prepared, settings))
    except TimeoutError:
        raise _too_long(settings.load_timeout, stage) from None
    paths = client_paths(settings)
    outside = paths.warning(row.local_path or "") if row.source == "local" else None
    if outside is not None:
        return structs.replace(facts, warnings=[*facts.warnings, outside])
    return facts


def _too_long(seconds: float, stage: str) -> Refusal:
    ended_in = f"; it ended in the stage {stage!r}" if stage else ""
    why = f"the load took longer than LOAD_TIMEOUT, {seconds:g} s{ended_in}"
    return Refusal("MODEL_LOAD_FAILED", why)


def _asked(prepared: Prepared, settings: Settings) -> dict[str, object]:
    """The fields of the load command."""
    row, plan = prepared.row, prepared.plan
    if prepared.header is not None:
        split = fitting_gguf.split(plan, prepared.cards)
        return {"path": row.local_path, "header": prepared.header, "split": split}
    return {
        "path": prepared.folder,
        "quantization": row.quantization,
        "trust_remote_code": row.trust_remote_code,
        "threads": settings.torch_threads,
        "kv_cache_mb": settings.kv_cache_mb,
        "min_context": settings.transformers_min_context,
        "prefix_cache_mb": settings.prefix_cache_mb,
        "grammar_cache": settings.structured_output_grammar_cache,
        "devices": list(plan.layer_devices),
        "working_mb": plan.working_mb,
        "idle_cache_release_s": settings.transformers_idle_cache_release_s,
        "max_step_ms": settings.max_step_ms,
        "seeded_rows": settings.seeded_rows,
        "cuda_graphs": settings.cuda_graphs,
        "data_folder": str(settings.steerserve_home),
    }


def as_refusal(error: Exception, *, has_unloaded: bool) -> Refusal:
    """The refusal that clients get for an error that ended a load.

    If another model was unloaded for this load, the code is always MODEL_LOAD_FAILED, and `details.cause` has the code
    of the reason.
    """
    if isinstance(error, TimeoutError):
        return Refusal("MODEL_LOAD_FAILED", "the load took longer than LOAD_TIMEOUT")
    if not isinstance(error, Refusal):
        return Refusal("MODEL_LOAD_FAILED", "the load failed inside the service")
    if error.code == "ENGINE_UNAVAILABLE" and not isinstance(error, endings.NotStarted):
        return endings.gone_while(error, "the model was loaded")
    if has_unloaded and error.code != "MODEL_LOAD_FAILED":
        return Refusal("MODEL_LOAD_FAILED", error.message, cause=error.code, **error.details)
    return error


def _returns(
    resident: Resident | None, cards: Sequence[Card], settings: Settings
) -> Mapping[str, int]:
    """The MiB by device that come back when the resident model is unloaded. Blocks."""
    if resident is None or resident.facts is None or resident.engine is None:
        return {}
    return fitting.returned(
        local_pid(resident.engine),
        resident.facts.memory_by_device_mb,
        settings.transformers_cuda_context_mb,
        placement=resident.placement,
        cards=cards,
    )


def _weights(path: str) -> tuple[Path, weights.Weights]:
    folder = local.resolve(path)
    local.read_model(folder)
    return folder, weights.read_weights(folder)


def _header(path: str) -> Header:
    """Raises:
    Refusal: INVALID_LOCAL_PATH.
    """
    try:
        return gguf_files.read_header(gguf_files.entry(local.resolve_file(path)))
    except gguf_files.GGUFError as error:
        raise Refusal("INVALID_LOCAL_PATH", str(error)) from error
    except OSError as error:
        why = f"the model cannot be read: {error.strerror or type(error).__name__}"
        raise Refusal("INVALID_LOCAL_PATH", why) from None
