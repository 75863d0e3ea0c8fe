"""The commands that ask a service. `--json` prints what the routes answer."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from typing import Annotated, Any, TypeVar

import typer

from steerserve import demo
from steerserve.client import Client
from steerserve.client.calls import drop_none
from steerserve.client.faults import (
    ModelNotFound,
    SaeIncompatible,
    SaeNotFound,
    ServiceError,
    ValidationError,
)
from steerserve.client.nouns import is_path
from steerserve.nouns.models.form import ModelRecord
from steerserve.nouns.saes.form import SaeDetails, SaeLensSae, SaeRecord
from steerserve.terminal import chat, naming, output, starting, steered
from steerserve.terminal.captures import capture
from steerserve.terminal.completing import model_names, profile_names, sae_names
from steerserve.terminal.output import megabytes, refusals, show_facts, show_json, show_table
from steerserve.terminal.watching import logs, watch

Shown = TypeVar("Shown")
Overrides = Mapping[str, str | float | bool]

DEMO = ("demo", demo.MODEL_NAME)
"""Names of the bundled model."""

Json = Annotated[bool, typer.Option("--json", help="Print what the routes answer, as JSON.")]
Model = Annotated[str, typer.Argument(help="Id or name of a model.", autocompletion=model_names)]
Sae = Annotated[str, typer.Argument(help="Id, name or path of an SAE.", autocompletion=sae_names)]
IsSae = Annotated[bool, typer.Option("--sae", help="The name is that of an SAE.")]
Layer = Annotated[
    int | None, typer.Option(help="Decoder layer; by default the one that the SAE was trained on.")
]
Revision = Annotated[str | None, typer.Option(help="Branch, tag or commit of the repository.")]
Gpu = Annotated[str | None, typer.Option(help="Index or UUID of a card, `auto`, or `all`.")]


def run(
    model: Annotated[
        str,
        typer.Argument(
            help="A model by id, name, repository or path; `demo` is the bundled one.",
            autocompletion=model_names,
        ),
    ],
    prompt: Annotated[str | None, typer.Argument(help="Answer this, and end.")] = None,
    sae: Annotated[
        str | None,
        typer.Option(
            help="Attach this SAE: id, name, path, owner/repository/file, or release/id of SAELens."
        ),
    ] = None,
    layer: Layer = None,
    steer: Annotated[
        list[str] | None,
        typer.Option(help="Set a feature for every request of the service: 90=52.5, sea=+10."),
    ] = None,
    system: Annotated[
        str | None, typer.Option(help="The system message that a chat begins with.")
    ] = None,
    temperature: Annotated[
        float | None,
        typer.Option(help="0 is greedy; by default what the checkpoint recommends."),
    ] = None,
    max_tokens: Annotated[int | None, typer.Option(help="The most tokens of an answer.")] = None,
    seed: Annotated[int | None, typer.Option(help="One seed gives one text.")] = None,
    as_json: Json = False,
) -> None:
    """Chat with a model. Starts a service on this machine if none answers, and loads what is needed."""
    wishes = [naming.wish(text) for text in steer or []]
    if prompt is None and not sys.stdin.isatty():
        prompt = sys.stdin.read().strip()
    if as_json and not prompt:
        raise typer.BadParameter("--json needs a prompt")
    with refusals(), Client() as client:
        if not starting.answers(client):
            starting.start(client, has_demo=model in DEMO)
        loaded = _load(client, _known(client, model))
        _attach_wanted(client, sae, layer, is_demo=model in DEMO)
        if wishes:
            values = naming.features(client, wishes, naming.attached(client))
            client.steering.set(values)
            named = ", ".join(f"{index}={value:g}" for index, value in values.items())
            output.note(f"{named} stays set for every request of the service; {steered.CLEARING}")
        own = drop_none(temperature=temperature, max_tokens=max_tokens, seed=seed)
        fields = _recommended(loaded) | own
        talk = chat.Chat(client, loaded.name, system=system, fields=fields)
        if prompt:
            talk.once(prompt, as_json=as_json)
            return
        output.note(f"{loaded.name} answers; /help lists the commands, /bye leaves")
        talk.run()


def pull(
    source: Annotated[
        str,
        typer.Argument(
            help="owner/repository of the hub, or a path of the service; SAEs also release/id of SAELens."
        ),
    ],
    sae: Annotated[bool, typer.Option("--sae", help="It is an SAE, not a model.")] = False,
    file: Annotated[
        str | None, typer.Option(help="SAEs: the path of one in its repository.")
    ] = None,
    name: Annotated[str | None, typer.Option(help="Models: a name of your own.")] = None,
    quantization: Annotated[str | None, typer.Option(help="Models: FP16, Q8, Q4 or Q2.")] = None,
    gguf: Annotated[str | None, typer.Option(help="Models: the label of a GGUF file.")] = None,
    revision: Revision = None,
    as_json: Json = False,
) -> None:
    """Download and register a model or an SAE."""
    fields = drop_none(
        revision=revision, custom_name=name, quantization=quantization, gguf_label=gguf
    )
    wrong = {"custom_name", "quantization", "gguf_label"} & set(fields) if sae else file
    if wrong:
        raise typer.BadParameter("--file is for SAEs; --name, --quantization, --gguf for models")
    with refusals(), Client() as client:
        if sae:
            record, _ = _download_sae(client, source, file, **fields)
            _show(record, as_json, lambda one: f"{one.id} {one.name} is {one.status}")
        else:
            model = client.models.register(source, progress=output.is_lively(), **fields)
            _show(model, as_json, lambda one: f"{one.id} {one.name} is {one.status}")


def ls(as_json: Json = False) -> None:
    """List the registered models and SAEs."""
    with refusals(), Client() as client:
        models, saes = client.models.list(), client.saes.list()
    if as_json:
        show_json({"models": models, "saes": saes})
        return
    show_table(
        ["id", "model", "params", "quantization", "size", "status"],
        [
            (
                one.id,
                one.name,
                one.params,
                one.quantization,
                megabytes(one.disk_size_mb),
                one.status,
            )
            for one in models
        ],
    )
    typer.echo()
    show_table(
        ["id", "SAE", "features", "layer", "status"],
        [(one.id, one.name, one.d_sae, one.trained_layer, one.status) for one in saes],
    )


def ps(as_json: Json = False) -> None:
    """Say what is loaded, attached and set."""
    with refusals(), Client() as client:
        health = client.health.detailed()
        if as_json:
            show_json(health)
            return
        attached, found = client.saes.attachments(), steered.read(client)
        queue = health.inference
        show_facts(
            {
                "service": f"{client.base_url}, {health.status}, version {health.version}",
                "model": health.model_name or "none is loaded",
                "SAEs": ", ".join(f"{one.sae_id} at layer {one.layer}" for one in attached),
                "steering": "on" if found.live.enabled else "off",
                "requests": f"{queue.in_flight} running, {queue.queue_pending} waiting",
            }
        )
        if not found.is_empty:
            typer.echo()
            steered.show(client, found)


def rm(
    name: Annotated[
        str, typer.Argument(help="A model, or with --sae an SAE.", autocompletion=model_names)
    ],
    sae: IsSae = False,
    as_json: Json = False,
) -> None:
    """Forget a model or an SAE, with the files that were downloaded for it."""
    with refusals(), Client() as client:
        if sae:
            gone = client.saes.delete(client.saes.find(name).id)
            _show(gone, as_json, lambda one: f"{one.sae_id} is deleted")
        else:
            deleted = client.models.delete(naming.model_id(name))
            _show(deleted, as_json, lambda one: f"{one.name} is deleted")


def show(
    name: Annotated[
        str, typer.Argument(help="A model, or with --sae an SAE.", autocompletion=model_names)
    ],
    sae: IsSae = False,
    as_json: Json = False,
) -> None:
    """Show all facts of a model or an SAE."""
    with refusals(), Client() as client:
        record: SaeRecord | ModelRecord = (
            client.saes.get(client.saes.find(name).id)
            if sae
            else client.models.get(naming.model_id(name))
        )
    if as_json:
        show_json(record)
    else:
        show_facts(output.facts(record))


def load(model: Model, gpu: Gpu = None, as_json: Json = False) -> None:
    """Load a model in the place of the loaded one."""
    with refusals(), Client() as client:
        _show(_load(client, naming.model_id(model), gpu), as_json, _model_line)


def unload(
    model: Annotated[
        str | None,
        typer.Argument(help="By default the loaded model.", autocompletion=model_names),
    ] = None,
    as_json: Json = False,
) -> None:
    """Take a model out of memory."""
    with refusals(), Client() as client:
        chosen = naming.loaded(client) if model is None else naming.model_id(model)
        _show(client.models.unload(chosen), as_json, _model_line)


def attach(
    sae: Sae,
    layer: Layer = None,
    beside: Annotated[
        bool, typer.Option("--beside", help="Keep the SAEs that are attached.")
    ] = False,
    as_json: Json = False,
) -> None:
    """Attach an SAE to the loaded model, in the place of those that are attached."""
    with refusals(), Client() as client:
        record = client.saes.find(sae)
        at = _layer(record, layer)
        if beside:
            both = client.saes.attach_set([{"sae_id": record.id, "layer": at}])
            for member in () if as_json else both.entries:
                output.warn(member)
            _show(both, as_json, lambda one: f"{one.attached_count} SAEs are attached")
        else:
            made = client.saes.attach(record.id, layer=at)
            _show(made, as_json, lambda one: f"{one.sae_id} is attached at layer {one.layer}")


def detach(
    sae: Annotated[
        str | None,
        typer.Argument(
            help="By default the SAE that was attached first.", autocompletion=sae_names
        ),
    ] = None,
    as_json: Json = False,
) -> None:
    """Detach an SAE."""
    with refusals(), Client() as client:
        sae_id = naming.attached(client) if sae is None else client.saes.find(sae).id
        _show(client.saes.detach(sae_id), as_json, lambda one: f"{one.sae_id} is detached")


def steer(
    edits: Annotated[
        list[str] | None, typer.Argument(help="90=52.5 by index, 'sea=+10' by label.")
    ] = None,
    off: Annotated[bool, typer.Option("--off", help="Clear all values.")] = False,
    sae: Annotated[str | None, typer.Option(help="By default the SAE attached first.")] = None,
    as_json: Json = False,
) -> None:
    """Set values of features. Shows everything that steers every request."""
    wishes = [naming.wish(text) for text in edits or []]
    if off and wishes:
        raise typer.BadParameter("give values or --off")
    with refusals(), Client() as client:
        chosen = None if sae is None else client.saes.find(sae).id
        if off:
            client.steering.clear(sae_id=chosen)
        elif wishes:
            sae_id = chosen or naming.attached(client)
            client.steering.set(naming.features(client, wishes, sae_id), sae_id=sae_id)
        found = steered.read(client, chosen)
        if as_json:
            show_json(found.plain())
        else:
            steered.show(client, found)


def profile(
    name: Annotated[
        str | None, typer.Argument(help="Activate this profile.", autocompletion=profile_names)
    ] = None,
    save: Annotated[str | None, typer.Option(help="Save what is set under this name.")] = None,
    off: Annotated[bool, typer.Option("--off", help="End the active profile.")] = False,
    rm: Annotated[str | None, typer.Option(help="Delete this profile.")] = None,
    as_json: Json = False,
) -> None:
    """List the saved profiles; activate, save, end or delete one."""
    if sum([name is not None, save is not None, off, rm is not None]) > 1:
        raise typer.BadParameter("give one of NAME, --save, --off, --rm")
    with refusals(), Client() as client:
        if save is not None:
            saved = client.profiles.save_current(save)
            _show(saved, as_json, lambda one: f"saved as {one.name} ({one.id})")
        elif rm is not None:
            gone = client.profiles.delete(client.profiles.find(rm).id)
            _show(gone, as_json, lambda one: f"{one.profile_id} is deleted")
        elif name is not None:
            begun = client.profiles.activate(client.profiles.find(name).id)
            _show(begun, as_json, lambda one: f"{one.feature_count} features are steered")
        elif off:
            ended = client.profiles.deactivate(naming.active_profile(client))
            _show(ended, as_json, lambda one: f"{one.profile_id} has ended")
        else:
            _list_profiles(client, as_json)


def _list_profiles(client: Client, as_json: bool) -> None:
    listed = client.profiles.every()
    if as_json:
        show_json(listed)
        return
    show_table(
        ["id", "profile", "features", "intensity", "active"],
        [
            (one.id, one.name, len(one.steering), one.intensity, one.is_active)
            for one in listed.profiles
        ],
    )


def stop(as_json: Json = False) -> None:
    """Stop the service that `steerserve run` started on this machine."""
    with refusals():
        _show(starting.stop(), as_json, lambda one: f"the service at {one.url} has stopped")


COMMANDS: tuple[Callable[..., None], ...] = (
    run, pull, ls, ps, rm, show, load, unload, attach, detach, steer, watch, profile, capture, logs,
    stop,
)  # fmt: skip


def add(main: typer.Typer) -> None:
    """Add the commands to the command line."""
    for command in COMMANDS:
        main.command(command.__name__, rich_help_panel="Models and steering")(command)


def _show(answer: Shown, as_json: bool, line: Callable[[Shown], str]) -> None:
    if as_json:
        show_json(answer)
    else:
        output.warn(answer)
        typer.echo(output.readable(line(answer)))


def _model_line(record: ModelRecord) -> str:
    return f"{record.id} {record.name} is {record.status}"


def _known(client: Client, text: str) -> int | str:
    """The model that a person names, which is registered where it is a repository, a path, or the bundled one."""
    name = demo.MODEL_NAME if text in DEMO else text
    known = naming.model_id(name)
    try:
        return client.models.get(known).id
    except ModelNotFound:
        if text in DEMO:
            _refuse_without_data()
        source = str(demo.MODEL_DIR) if text in DEMO else text
        if "/" not in source:
            raise
    fields: dict[str, Any] = {"custom_name": name} if text in DEMO else {}
    return client.models.register(source, progress=output.is_lively(), **fields).id


def _refuse_without_data() -> None:
    """Raises:
    ServiceError: the bundled model and its SAE are not on this machine.
    """
    if not demo.DATA.is_dir():
        raise ServiceError(f"the bundled model and its SAE are not here: {starting.INSTALL}")


def _recommended(model: ModelRecord) -> dict[str, object]:
    """The sampling that the checkpoint recommends, as fields of a request. A GGUF model recommends none, and is asked
    greedily."""
    said = model.generation_config
    if said is None:
        return {"temperature": 0.0}
    return {"temperature": said.temperature, "top_p": said.top_p}


def _load(client: Client, model: int | str, gpu: str | None = None) -> ModelRecord:
    card = int(gpu) if gpu is not None and gpu.isdigit() else gpu
    return client.models.load(model, gpu=card, progress=output.is_lively())


def _attach_wanted(client: Client, sae: str | None, layer: int | None, *, is_demo: bool) -> None:
    """Attach the SAE that a person names. The bundled model gets the SAE of its proof, unless one is attached."""
    if sae is not None:
        record, overrides = _sae(client, sae)
        at = _layer(record, layer)
        there = {(one.sae_id, one.layer): one for one in client.saes.attachments()}
        output.warn(
            there.get((record.id, at))
            or client.saes.attach(record.id, layer=at, overrides=overrides or None)
        )
    elif is_demo and not client.saes.attachment().is_attached:
        _refuse_without_data()
        shipped = next(one for one in demo.saes() if one.name == demo.proof()["sae"])
        stored = client.saes.download(str(shipped.path), progress=False)
        document = {str(index): entry for index, entry in demo.labels(shipped).items()}
        client.features.add_labels(stored.id, document)
        output.warn(client.saes.attach(stored.id, layer=shipped.layer))


def _sae(client: Client, text: str) -> tuple[SaeRecord, Overrides]:
    """The SAE that a person names, which is downloaded where it is not registered, and the overrides of its attach."""
    try:
        return client.saes.find(text), {}
    except SaeNotFound:
        if "/" not in text:
            raise
    record, overrides = _download_sae(client, text)
    return _one(record), overrides


def _download_sae(
    client: Client, text: str, file: str | None = None, **fields: Any
) -> tuple[SaeDetails, Overrides]:
    """Download the SAE that a person names: `release/id` of SAELens, `owner/repository` of the hub, with the path of
    one SAE or without, or a path of the service. Also the overrides that SAELens knows for its attach."""
    lively = output.is_lively()
    if file is not None or is_path(text):
        return client.saes.download(text, file, progress=lively, **fields), {}
    try:
        named = client.saes.add(sae_lens=text, **fields).sae_lens
    except ValidationError as refusal:
        if refusal.details.get("unknown") != "release" or refusal.details.get("near"):
            raise
        owner, _, rest = text.partition("/")
        repository, _, inner = rest.partition("/")
        source = f"{owner}/{repository}" if repository else owner
        return client.saes.download(source, inner or None, progress=lively, **fields), {}
    assert isinstance(named, SaeLensSae)  # the request named the SAE so
    output.note(f"{text} of SAELens is {named.file_path} of {named.repository_id}")
    if named.neuronpedia_id is not None:
        output.note(f"Neuronpedia has its features as {named.neuronpedia_id}")
    if named.overrides:
        needed = ", ".join(f"{name}={value}" for name, value in named.overrides.items())
        output.note(f"its files lack what the attach needs as overrides: {needed}")
    record = client.saes.download(named.repository_id, named.file_path, progress=lively, **fields)
    return record, named.overrides


def _one(record: SaeDetails) -> SaeDetails:
    units = record.units if isinstance(record.units, list) else []
    if units:
        paths = ", ".join(str(unit.path) for unit in units[:8])
        raise SaeIncompatible(f"{record.id} has {len(units)} SAEs; name one: {paths}")
    return record


def _layer(record: SaeRecord, layer: int | None) -> int:
    chosen = record.trained_layer if layer is None else layer
    if chosen is None:
        raise typer.BadParameter(f"{record.id} does not say its layer; give --layer")
    return chosen
