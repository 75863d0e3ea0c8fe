"""The work at the start of the service: it loads the bundled demo, loads a model, or only warms up the fork server."""

from __future__ import annotations

import asyncio
import json
import shlex
import shutil
import sys
from collections.abc import AsyncIterator, Coroutine, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import structlog

from steerserve import __version__, demo
from steerserve.app.wiring import Owners
from steerserve.control.residency.events import UnloadComplete
from steerserve.control.residency.resident import Attachment
from steerserve.database.catalog import ModelRow, SaeRow
from steerserve.errors import Refusal
from steerserve.nouns.clusters.owner import ImportOptions
from steerserve.nouns.corpora.noun import CORPORA
from steerserve.rules.events import Event
from steerserve.settings import Settings

log = structlog.get_logger(__name__)

STAMP = ".version"
"""The file in a copied folder that has the version which copied it."""


PAUSES = (0.0, 5.0, 15.0, 60.0, 300.0)
"""Seconds before each further try to load the model of AUTO_LOAD_MODEL. The first is for an engine that ended by
itself. After the last one the model is loaded by requests or operators only."""
STEADY_SECONDS = 600.0
"""Once the model has served for so long, the tries are counted anew."""


async def begin_service(owners: Owners) -> None:
    """Load the demo or the model that the settings name, if any, go on with batches, and keep the model of
    AUTO_LOAD_MODEL loaded. A failure is logged, and the service goes on. Readiness shows the reason until a model is
    loaded."""
    await _name_refused_models(owners)
    await _renew_ids(owners)
    settings = owners.settings
    failure = await _failure_of(_load_named(owners))
    if failure is not None and (settings.demo or settings.auto_load_model):
        owners.vitals.load_failure = _failed(owners, failure)
    owners.vitals.is_starting = False
    owners.batches.resume_batches()
    if settings.auto_load_model and not settings.demo:
        await _keep_loaded(owners, settings.auto_load_model, failure)


@dataclass(frozen=True, slots=True)
class Failure:
    """Why a load at the start, or a further try, failed. `may_pass` says whether another try may succeed."""

    reason: str
    may_pass: bool


async def _failure_of(work: Coroutine[object, object, None]) -> Failure | None:
    """Do the work. A failure is logged and returned."""
    try:
        await work
    except Refusal as refusal:
        log.error("start_failed", code=refusal.code, reason=refusal.message)
        # an engine may have ended for want of memory, and an operator who ends the load gets no second one
        may_pass = refusal.code == "MODEL_LOAD_FAILED" or not refusal.is_final
        return Failure(refusal.message, may_pass and refusal.code != "MODEL_BUSY")
    except OSError as error:
        reason = _disk_reason(error)
        log.error("start_failed", reason=reason)
        return Failure(reason, may_pass=True)
    except Exception as error:
        log.exception("start_failed")
        return Failure(type(error).__name__, may_pass=False)
    return None


async def _name_refused_models(owners: Owners) -> None:
    """Log the registered models that need `trust_remote_code`, where it is not allowed."""
    if owners.settings.may_run_remote_code:
        return
    try:
        rows = await owners.models.list()
    except Exception:  # border of the start: whatever the database does, the service serves on
        log.exception("models_not_read")
        return
    if names := [row.name for row in rows if row.trust_remote_code]:
        log.warning("models_need_remote_code", models=names, setting="ALLOW_REMOTE_CODE")


async def _load_named(owners: Owners) -> None:
    settings = owners.settings
    if settings.demo_model is not None and settings.demo:
        _announce_own(await start_own(owners, settings.demo_model, settings.demo_saes), settings)
    elif settings.demo:
        _announce(await start_demo(owners), settings)
    elif settings.auto_load_model:
        await _load(owners, settings.auto_load_model)
    else:
        await (await owners.launcher.launch()).stop()


async def _keep_loaded(owners: Owners, name: str, failure: Failure | None) -> None:
    """Try again to load the model after a failure that may pass, and after its engine has ended by itself. Nothing is
    tried while the slot has a model: somebody has loaded it."""
    conductor, seconds = owners.conductor, owners.around.seconds
    vacated = asyncio.Event()

    def note(event: Event) -> None:
        if isinstance(event, UnloadComplete):
            vacated.set()

    owners.bus.subscribe(note)
    tries = 0 if failure is None else 1
    while True:
        if failure is None or not failure.may_pass:
            since = seconds()
            await _until_lost(owners, name, vacated)
            if seconds() - since >= STEADY_SECONDS:
                tries = 0
        if tries == len(PAUSES):
            log.error("auto_load_given_up", model=name, tries=tries)
            failure = None
            continue
        vacated.clear()
        await asyncio.sleep(PAUSES[tries])
        tries, failure = tries + 1, None
        # an operator who has unloaded a model meanwhile gets no other one
        if conductor.resident is None and not vacated.is_set() and not conductor.is_closing:
            log.info("auto_load_again", model=name, tries=tries)
            failure = await _failure_of(_load(owners, name))
            owners.vitals.load_failure = _failed(owners, failure) if failure else None


async def _until_lost(owners: Owners, name: str, vacated: asyncio.Event) -> None:
    """Return once the engine of the model has ended by itself and the slot is empty."""
    while True:
        await vacated.wait()
        vacated.clear()
        end = owners.conductor.view().engine_end
        # a model that was deleted meanwhile is not found
        with suppress(Refusal):
            if end is not None and end.model_id == (await _row(owners, name)).id:
                return


def _failed(owners: Owners, failure: Failure) -> str:
    name = owners.settings.auto_load_model
    wanted = "DEMO" if owners.settings.demo else f"AUTO_LOAD_MODEL {name!r}"
    return f"{wanted} failed: {failure.reason}"


def _disk_reason(error: OSError) -> str:
    """The reason of an error of the disk. A copied folder has an error of several files; the first one says the
    reason."""
    if isinstance(error, shutil.Error) and error.args and error.args[0]:
        return str(error.args[0][0][-1])[:200]
    return str(error)[:200]


async def _renew_ids(owners: Owners) -> None:
    """Renew the ids of SAEs that an earlier version registered. After a failure, which is logged, the old ids stay."""
    try:
        await owners.saes.renew_ids()
    except (
        Exception
    ):  # border of the start: whatever the database or a disk does, the service serves on
        log.exception("sae_ids_not_renewed")


async def _load(owners: Owners, name: str) -> None:
    """Load the model of AUTO_LOAD_MODEL.

    Raises:
        Refusal: the load is refused.
    """
    async with using(owners, await _row(owners, name)):
        pass


async def _row(owners: Owners, name: str) -> ModelRow:
    """The model that AUTO_LOAD_MODEL names, also one whose last load failed.

    Raises:
        Refusal: MODEL_NOT_FOUND, AMBIGUOUS_MODEL_NAME.
    """
    try:
        return (await owners.served.find(name)).row
    except Refusal as refusal:
        failed = [row for row in await owners.models.list() if row.name == name]
        if refusal.code != "MODEL_NOT_FOUND" or not failed:
            raise
        return failed[0]


@asynccontextmanager
async def using(owners: Owners, row: ModelRow) -> AsyncIterator[None]:
    """The model is loaded, and stays so until the block ends. A load of this model that a client has begun is joined;
    loads and unloads of other models that clients have begun end first.

    Raises:
        Refusal: the load is refused.
    """
    conductor = owners.conductor
    async with AsyncExitStack() as used:
        is_loaded = False
        while not is_loaded:
            try:
                await used.enter_async_context(conductor.use(row))
                is_loaded = True
            except Refusal as refusal:
                # an operator who ends this load gets no second one
                if refusal.code != "MODEL_BUSY" or not conductor.is_changing:
                    raise
                await conductor.settled()
        yield


@dataclass(frozen=True, slots=True)
class Ready:
    """The loaded model and SAE that the text at the terminal names. `others` are the SAEs that are not attached, as
    `attach-set` takes them."""

    model: ModelRow
    attachment: Attachment
    others: list[dict[str, object]]


async def start_demo(owners: Owners) -> Ready:
    """Copy the demo into the data folder, register its model and its SAEs with their labels, load the model, attach the
    SAE of the proof, and import the example documents and the results of the example corpus.

    Raises:
        Refusal: the load or the attaching is refused.
    """
    settings = owners.settings
    model, saes = (
        folder / demo.MODEL_NAME for folder in (settings.model_cache_dir, settings.sae_cache_dir)
    )
    await asyncio.to_thread(_copy, demo.MODEL_DIR, model)
    await asyncio.to_thread(_copy, demo.DATA / "saes", saes)
    row = await _registered(owners, model, demo.MODEL_NAME)
    rows = {}
    for sae in demo.saes():
        rows[sae.name], _ = await owners.saes.add(str(saes / sae.name), is_own=True)
        await _import_labels(owners, rows[sae.name].id, sae.labels)
    async with using(owners, row):
        proof = demo.proof()
        attachment = await attached(owners, rows[proof["sae"]], proof["layer"])
    await _import_examples(owners)
    await _import_corpus(owners, row.name, {name: sae.id for name, sae in rows.items()})
    others: list[dict[str, object]] = [
        {"sae_id": rows[sae.name].id, "layer": sae.layer}
        for sae in demo.saes()
        if sae.name != proof["sae"]
    ]
    return Ready(row, attachment, others)


async def start_own(owners: Owners, model: Path, saes: Sequence[Path]) -> Ready:
    """Register a model and its SAEs where they are, with the labels beside the SAEs, load the model, and attach the
    first SAE at the layer that it names.

    Raises:
        Refusal: a path cannot be registered, an SAE names no layer, the load or the attaching is refused.
    """
    row = await _registered(owners, model)
    rows = []
    for path in saes:
        sae, _ = await owners.saes.add(str(path), is_own=True)
        if sae.trained_layer is None:
            why = f"the SAE {str(path)!r} does not say the layer that it was trained on"
            raise Refusal("SAE_INCOMPATIBLE", f"{why}; attach it with `steerserve attach --layer`")
        labels = path / "labels.json"
        if await asyncio.to_thread(labels.is_file):
            await _import_labels(owners, sae.id, labels)
        rows.append((sae, sae.trained_layer))
    async with using(owners, row):
        attachment = await attached(owners, *rows[0])
    others: list[dict[str, object]] = [
        {"sae_id": sae.id, "layer": layer} for sae, layer in rows[1:] if sae.id != rows[0][0].id
    ]
    return Ready(row, attachment, others)


async def attached(owners: Owners, sae: SaeRow, layer: int) -> Attachment:
    """The SAE, attached at the layer. A client may have attached it before.

    Raises:
        Refusal: the attaching is refused.
    """
    try:
        return await owners.attachments.attach(sae, layer)
    except Refusal as refusal:
        if refusal.code != "SAE_ALREADY_ATTACHED":
            raise
    there = owners.conductor.attachments()
    return next(one for one in there if (one.sae_id, one.layer) == (sae.id, layer))


async def _import_labels(owners: Owners, sae_id: str, file: Path) -> None:
    """Import the labels of an SAE, unless it has labels already: a person may have changed them."""
    if not await owners.features.labels(sae_id):
        document = await asyncio.to_thread(_read, file)
        await owners.features.add_labels(sae_id, document, replace=False)


async def _import_examples(owners: Owners) -> None:
    """Import the example cluster and the example circuit, if they are not there, and enable their sensing."""
    try:
        await owners.clusters.get(demo.CLUSTER_ID)
    except Refusal as refusal:
        if refusal.code != "PROFILE_NOT_FOUND":
            raise
        body = await asyncio.to_thread(demo.CLUSTER.read_bytes)
        await owners.clusters.add_body(body, ImportOptions(own_id=demo.CLUSTER_ID))
        await owners.cluster_sensing.enable(demo.CLUSTER_ID)
    try:
        await owners.circuits.document(demo.CIRCUIT_ID)
    except Refusal as refusal:
        if refusal.code != "CIRCUIT_NOT_FOUND":
            raise
        body = await asyncio.to_thread(demo.CIRCUIT.read_bytes)
        await owners.circuits.add_body(body, "rename", demo.CIRCUIT_ID)
        await owners.circuit_sensing.enable(demo.CIRCUIT_ID)


async def _import_corpus(owners: Owners, model: str, sae_ids: Mapping[str, str]) -> None:
    """Store the results of the example corpus, if they are not there. The demo serves without them where they have no
    room, and where a person has given the name to another corpus."""
    document = await asyncio.to_thread(demo.CORPUS.read_bytes)
    try:
        await owners.owner(CORPORA).add_results(demo.CORPUS_ID, document, model, sae_ids)
    except Refusal as refusal:
        log.warning("demo_corpus_not_stored", code=refusal.code, reason=refusal.message)


def _read(file: Path) -> object:
    return json.loads(file.read_text(encoding="utf-8"))


def _copy(source: Path, target: Path) -> None:
    """Copy a folder of the package into the data folder, whole or not at all. A copy by another version is replaced.
    The stamp is hidden, so it is no part of the content of a model."""
    stamp = target / STAMP
    if stamp.is_file() and stamp.read_text() == __version__:
        return
    staging = target.with_name(target.name + ".new")
    shutil.rmtree(staging, ignore_errors=True)
    shutil.copytree(source, staging)
    (staging / STAMP).write_text(__version__)
    shutil.rmtree(target, ignore_errors=True)
    staging.rename(target)


async def _registered(owners: Owners, folder: Path, name: str | None = None) -> ModelRow:
    """The record of a model in a folder, also of one that was registered before."""
    path = str(await asyncio.to_thread(folder.resolve))
    for row in await owners.models.list():
        if row.local_path == path:
            return row
    return await owners.models.add(
        path,
        quantization="FP16",
        custom_name=name,
        trust_remote_code=False,
        is_own=True,
    )


def _kept_texts(settings: Settings) -> str:
    """Which texts the sensing of the examples keeps, in words."""
    most = max(settings.sensing_context_tokens, settings.circuit_sensing_context_tokens)
    if not most:
        return "No text around firings is kept."
    return (
        f"While the cluster or the circuit serves, up to {most} tokens on each side of a firing are kept for days.\n"
        "  SENSING_CONTEXT_TOKENS=0 and CIRCUIT_SENSING_CONTEXT_TOKENS=0 keep none."
    )


def _announce(ready: Ready, settings: Settings) -> None:
    """Print requests that the person at the terminal can try with the demo."""
    base = f"http://{settings.host}:{settings.port}"
    name, attachment, proof = ready.model.name, ready.attachment, demo.proof()
    body = json.dumps({"feature_idx": proof["feature_idx"], "value": proof["strength"]})
    message = {"role": "user", "content": "Tell me a story."}
    # greedy, so that the difference shows each time
    ask = json.dumps({"model": name, "messages": [message], "temperature": 0})
    saes = json.dumps({"saes": ready.others})
    send = "-H 'content-type: application/json' -d"
    print(
        f"""
steerserve {__version__} is ready at {base}  (Ctrl-C stops it)

  Open {base}/ in a browser, or try the requests below.
  The demo model {name!r} is loaded; SAE {attachment.sae_id} is attached at layer {attachment.layer}.

  Ask for a story:
    curl -s {base}/v1/chat/completions {send} '{ask}'
  Turn the sea feature up, ask again, and read where the story goes:
    curl -s {base}/api/saes/steering {send} '{body}'
  Turn it off:
    curl -s -X DELETE {base}/api/saes/steering
  Steer by the example cluster, and turn its dial:
    curl -s -X POST {base}/api/clusters/{demo.CLUSTER_ID}/activate
    curl -s -X PUT {base}/api/clusters/active/intensity {send} '{{"intensity": 0.8}}'
  See where its features fired together in the last story:
    curl -s '{base}/api/sensing/events?limit=3'
  Attach the other SAE too, and steer by the example circuit of two layers:
    curl -s {base}/api/saes/attach-set {send} '{saes}'
    curl -s -X POST {base}/api/circuits/{demo.CIRCUIT_ID}/activate
  See which of its edges fired in the last story:
    curl -s '{base}/api/circuit-sensing/events?limit=3'

  {_kept_texts(settings)}
""",
        file=sys.stdout,
        flush=True,
    )


def _announce_own(ready: Ready, settings: Settings) -> None:
    """Print what the person at the terminal can do with a model and an SAE of their own."""
    base = f"http://{settings.host}:{settings.port}"
    name, attachment = ready.model.name, ready.attachment
    ask = json.dumps({"model": name, "prompt": "Last summer", "max_tokens": 60, "temperature": 0})
    send = "-H 'content-type: application/json' -d"
    told = [
        f"steerserve {__version__} is ready at {base}  (Ctrl-C stops it)\n",
        f"  Open {base}/ in a browser, or try the commands below in another terminal.",
        f"  The model {name!r} is loaded; SAE {attachment.sae_id} is attached at layer {attachment.layer}.",
    ]
    told += [f"  Warning: {warning}" for warning in attachment.warnings]
    told += [
        "\n  Let it continue a text:",
        f"    curl -s {base}/v1/completions {send} {shlex.quote(ask)}",
        "  Find the features of a concept, by texts with it and without it:",
        f"    {base}/contrast",
        "  Turn a feature up for all requests, by its number and a strength, and off again:",
        f"    STEERSERVE_URL={base} steerserve steer NUMBER=STRENGTH",
        f"    STEERSERVE_URL={base} steerserve steer --off",
    ]
    if ready.others:
        body = shlex.quote(json.dumps({"saes": ready.others}))
        told += [
            "  Attach the other SAEs too:",
            f"    curl -s {base}/api/saes/attach-set {send} {body}",
        ]
    print("\n" + "\n".join(told) + "\n", flush=True)
