"""Records of answers: what an answer was made from, how two records differ, and the steering of a record as it is put
into the request again.

A record has no header of its request but X-Request-Id, so neither keys nor leases are in it.
"""

from __future__ import annotations

import base64
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime

import msgspec
from msgspec import UNSET, UnsetType
from msgspec.structs import replace

from steerserve.errors import Refusal
from steerserve.rules.field_faults import refuse_field
from steerserve.rules.form import Form
from steerserve.rules.inference import names
from steerserve.rules.saes.provenance import SaeOrigin
from steerserve.rules.steering.edits import AllOf, AnyOf, Condition, Edit, Feature, When, conditions
from steerserve.rules.steering.live import check_index, check_value
from steerserve.rules.steering.placed import Modifiers, Values
from steerserve.rules.steering.placing import ModelFacts
from steerserve.rules.steering.recorded import check_edits, check_fitting
from steerserve.rules.steering.vector import Direction

ROUTES = {
    names.CHAT: "/v1/chat/completions",
    names.COMPLETIONS: "/v1/completions",
    names.RESPONSES: "/v1/responses",
}
"""The routes whose answers are recorded, by their names in `fields`."""
BYTES_MAXIMUM = 4 << 20
"""The largest record, as JSON."""
X_REQUEST_ID_MAXIMUM = 128
EDITS = "steering.edits"
EXCERPT = 40
"""The characters that an answer shows of a text that differs."""
STEERING_FIELDS = ("profile", "steering_intensity", "sae_steering", "interventions")
"""The fields of a body whose place the recorded steering takes."""

_ID = re.compile(r"[A-Za-z0-9_-]{1,64}")
_EDITS = msgspec.msgpack.Decoder(tuple[Edit, ...])


class RunModel(Form, frozen=True, kw_only=True):
    """The model of an answer, with what identifies it on every machine."""

    name: str
    repository_id: str | None
    revision: str | None
    content_digest: str | None
    quantization: str
    dtype: str | None
    engine: str


class RunSae(Form, frozen=True, kw_only=True):
    """An SAE that was attached, with what identifies it on every machine. `key` is its name in the steering, and
    `overrides` are the facts stated at the attach that change the added vector."""

    key: str
    sae_id: str
    layer: int
    site: str
    d_sae: int
    repository_id: str | None
    revision: str | None
    file_path: str | None
    content_digest: str | None
    overrides: dict[str, object]

    @property
    def origin(self) -> SaeOrigin:
        return SaeOrigin(self.repository_id, self.revision, self.file_path, self.content_digest)

    def is_same(self, other: RunSae) -> bool:
        """Whether both are one SAE at one place."""
        place = (self.layer, self.site, self.overrides)
        is_there = place == (other.layer, other.site, other.overrides)
        is_known = self.origin.is_same(other.origin)
        return is_there and (is_known or (self.origin, self.sae_id) == (other.origin, other.sae_id))


class RunSteering(Form, frozen=True, kw_only=True):
    """The steering that an answer had, whosever it was. `state` is its digest, null where nothing was steered. `values`
    are what was added to features, by the keys of SAEs. `edits` are all other edits in the order in which they were
    made, as MessagePack in base64. `changed` says that an operator changed the steering while the answer was
    written."""

    state: str | None
    sources: list[str]
    values: dict[str, dict[int, float]]
    edits: str | None
    preserve_norm: bool
    changed: bool


class RunMachine(Form, frozen=True, kw_only=True):
    """Where an answer was computed: the kind of device and its name, and the digest of the logits that the engine
    computed when it was tried out, which is empty where it was not. With `shares_passes` other rows change no bit of
    the logits of a row."""

    device: str
    processor: str
    probe: str
    shares_passes: bool


class RunSettings(Form, frozen=True, kw_only=True):
    """The settings that change answers."""

    default_max_tokens: int
    continuous_batching: bool


class RunScore(Form, frozen=True):
    """One token of a scoring request, with its log-probability."""

    token_id: int
    logprob: float | None


class RunChoice(Form, frozen=True, kw_only=True):
    """One choice of an answer. `scores` are what a scoring request lists: the tokens of an echoed prompt, the best next
    token, and the candidates; null for generated text."""

    text: str
    finish_reason: str | None
    tokens: int
    scores: list[RunScore] | None


class Run(Form, frozen=True, kw_only=True):
    """One answer, and what it was made from. `body` has the fields of the request that the service read. `seed` is null
    where no seed was used; `seed_chosen` says that the service chose it. `x_request_id` is the X-Request-Id of the
    request; null for a line of a batch."""

    request_id: str
    created_at: datetime
    route: str
    body: dict[str, object]
    seed: int | None
    seed_chosen: bool
    model: RunModel
    saes: list[RunSae]
    steering: RunSteering
    versions: dict[str, str]
    machine: RunMachine
    settings: RunSettings
    prompt_tokens: list[int]
    choices: list[RunChoice]
    x_request_id: str | None = None


class ShownRun(Run, frozen=True, kw_only=True):
    """One answer, and in `also` the ids of the other answers with its X-Request-Id, where it was asked for by that."""

    also: list[str]


class RunSummary(Form, frozen=True, kw_only=True):
    """One record in a list, without its texts."""

    request_id: str
    created_at: datetime
    route: str
    model: str
    seed: int | None
    steering_state: str | None
    choices: int
    prompt_tokens: int
    completion_tokens: int


class RunDifference(Form, frozen=True, kw_only=True):
    """Where a replayed answer first differs: in the `text` of a choice from the character `at` on, in its
    `finish_reason` or its number of `tokens`, in the score `at`, or in the number of `choices`."""

    choice: int
    part: str
    at: int | None
    recorded: str
    replayed: str


class RunReason(Form, frozen=True):
    """Something that is not as it was, so that the answer may differ."""

    code: str
    message: str


class Replayed(Form, frozen=True, kw_only=True):
    """How a replayed answer compares with the recorded one. `first_difference` is there where they differ."""

    request_id: str
    equal: bool
    reasons: list[RunReason]
    first_difference: RunDifference | UnsetType = UNSET


@dataclass(frozen=True, slots=True)
class PlacedSteering:
    """Recorded steering at the SAEs that are attached now."""

    values: Mapping[str, Values]
    edits: tuple[Edit, ...]
    modifiers: Modifiers


def summary(run: Run) -> RunSummary:
    """The record as a list has it."""
    return RunSummary(
        request_id=run.request_id,
        created_at=run.created_at,
        route=run.route,
        model=run.model.name,
        seed=run.seed,
        steering_state=run.steering.state,
        choices=len(run.choices),
        prompt_tokens=sum(run.prompt_tokens),
        completion_tokens=sum(choice.tokens for choice in run.choices),
    )


def check_imported(run: Run, place: str) -> None:
    """Raises:
    Refusal: VALIDATION_ERROR for an id or a route that no record has; INVALID_INTERVENTION and TOO_MANY_EDITS for
        edits that no request can have. Edits that this version cannot read are refused when they are used.
    """
    why = None
    if not _ID.fullmatch(run.request_id):
        why = "request_id: up to 64 letters, digits, `-` and `_`"
    elif run.route not in ROUTES.values():
        why = f"route: one of {', '.join(ROUTES.values())}"
    elif len(run.x_request_id or "") > X_REQUEST_ID_MAXIMUM:
        why = f"x_request_id: at most {X_REQUEST_ID_MAXIMUM} characters"
    if why is not None:
        raise refuse_field(place, why, param=place)
    check_edits(_decoded(run) or (), f"{place}.{EDITS}")


def check_replayable(run: Run) -> None:
    """Raises:
    Refusal: RUN_NOT_REPLAYABLE.
    """
    generates = any(choice.scores is None for choice in run.choices)
    is_greedy = run.body.get("temperature") == 0
    if run.steering.changed:
        raise not_replayable(run, "an operator changed the steering while the answer was written")
    if run.model.engine != names.CHECKPOINT:
        raise not_replayable(run, "a GGUF model takes no seed")
    if generates and run.seed is None and not is_greedy:
        raise not_replayable(run, "it was served by continuous batching, without a seed")


def not_replayable(run: Run, why: str) -> Refusal:
    return Refusal(
        "RUN_NOT_REPLAYABLE", f"{run.request_id}: {why}", request_id=run.request_id, reason=why
    )


def replayed_body(run: Run) -> dict[str, object]:
    """The body of the request again, without its steering and not streamed."""
    kept = {
        name: value
        for name, value in run.body.items()
        if name not in (*STEERING_FIELDS, "stream", "stream_options")
    }
    seed = {} if run.seed is None else {"seed": run.seed}
    return kept | seed | {"model": run.model.name}


# ------------------------------------------------------------------ steering


def encoded_edits(edits: Sequence[Edit]) -> str | None:
    """Edits as a record has them; None for none."""
    if not edits:
        return None
    return base64.b64encode(msgspec.msgpack.encode(tuple(edits))).decode()


def placed(run: Run, attached: Mapping[str, RunSae], model: ModelFacts) -> PlacedSteering:
    """The recorded steering at the attached SAEs, which are given by their keys. An SAE is found by what identifies
    it.

    Raises:
        Refusal: SAE_NOT_ATTACHED, RUN_NOT_REPLAYABLE; INVALID_FEATURE_INDEX, VALIDATION_ERROR, and the refusals of
            `rules/steering/recorded`.
    """
    steering = run.steering
    edits = _edits(run)
    features = [one for edit in edits for one in _reads(edit) if isinstance(one, Feature)]
    needed = {key for key, values in steering.values.items() if values}
    keys = {key: _found(run, key, attached) for key in needed | {one.key for one in features}}
    for key in needed:
        for index, value in steering.values[key].items():
            check_index(index, attached[keys[key]].d_sae)
            check_value(value)
    for one in features:
        check_index(one.index, attached[keys[one.key]].d_sae)
    moved = tuple(_moved(edit, keys) for edit in edits)
    places = {key: (sae.layer, sae.site) for key, sae in attached.items()}
    check_fitting(moved, EDITS, places, model)
    return PlacedSteering(
        {keys[key]: steering.values[key] for key in needed},
        moved,
        Modifiers(preserve_norm=steering.preserve_norm),
    )


def _edits(run: Run) -> tuple[Edit, ...]:
    edits = _decoded(run)
    if edits is None:
        raise not_replayable(run, "this version does not read its edits")
    check_edits(edits, EDITS)
    return edits


def _decoded(run: Run) -> tuple[Edit, ...] | None:
    """The recorded edits; None for those that this version cannot read."""
    if run.steering.edits is None:
        return ()
    try:
        return _EDITS.decode(base64.b64decode(run.steering.edits, validate=True))
    except (ValueError, msgspec.DecodeError, RecursionError):
        return None


def _reads(edit: Edit) -> list[Feature | Direction]:
    """Everything that an edit reads or writes."""
    to = [] if edit.to is None else [edit.to]
    return [edit.at, *to, *(condition.reads for condition in conditions(edit.when))]


def _found(run: Run, key: str, attached: Mapping[str, RunSae]) -> str:
    """The key of the attached SAE that the record names `key`."""
    recorded = next((sae for sae in run.saes if sae.key == key), None)
    if recorded is None:
        raise not_replayable(run, f"its steering names the SAE {key!r}, which it does not describe")
    same = [now for now, sae in attached.items() if sae.is_same(recorded)]
    # an SAE of the same id whose content differs is tried, and named among the reasons
    near = [now for now, sae in attached.items() if now == key and sae.site == recorded.site]
    if not same + near:
        named = recorded.content_digest or recorded.file_path or recorded.sae_id
        raise Refusal(
            "SAE_NOT_ATTACHED",
            f"the answer was steered by the SAE {recorded.sae_id!r} ({named}) at layer {recorded.layer}, "
            "which is not attached",
            sae_id=recorded.sae_id,
            layer=recorded.layer,
        )
    return (same + near)[0]


def _moved(edit: Edit, keys: Mapping[str, str]) -> Edit:
    """The edit at the SAEs that are attached under other keys."""
    when = None if edit.when is None else _moved_when(edit.when, keys)
    return replace(edit, at=_moved_read(edit.at, keys), when=when)


def _moved_when(when: When, keys: Mapping[str, str]) -> When:
    if isinstance(when, Condition):
        return replace(when, reads=_moved_read(when.reads, keys))
    made: AnyOf | AllOf = replace(
        when, conditions=tuple(_moved_when(one, keys) for one in when.conditions)
    )
    return made


def _moved_read(at: Feature | Direction, keys: Mapping[str, str]) -> Feature | Direction:
    return Feature(keys[at.key], at.index) if isinstance(at, Feature) else at


# ------------------------------------------------------------------ comparison


def first_difference(
    recorded: Sequence[RunChoice], replayed: Sequence[RunChoice]
) -> RunDifference | None:
    """Where two answers first differ; None where they are equal."""
    for number, (then, now) in enumerate(zip(recorded, replayed, strict=False)):
        if then.text != now.text:
            at = _common(then.text, now.text)
            return _differs(
                number, "text", at, then.text[at : at + EXCERPT], now.text[at : at + EXCERPT]
            )
        for at, (old, new) in enumerate(zip(then.scores or (), now.scores or (), strict=False)):
            if old != new:
                return _differs(number, "scores", at, _scored(old), _scored(new))
        ends = {
            "scores": (len(then.scores or ()), len(now.scores or ())),
            "finish_reason": (then.finish_reason, now.finish_reason),
            "tokens": (then.tokens, now.tokens),
        }
        for part, (was, is_now) in ends.items():
            if was != is_now:
                return _differs(number, part, None, str(was), str(is_now))
    if len(recorded) != len(replayed):
        least = min(len(recorded), len(replayed))
        return _differs(least, "choices", None, str(len(recorded)), str(len(replayed)))
    return None


def _differs(choice: int, part: str, at: int | None, then: str, now: str) -> RunDifference:
    return RunDifference(choice=choice, part=part, at=at, recorded=then, replayed=now)


def _scored(score: RunScore) -> str:
    return f"{score.token_id}: {score.logprob!r}"


def _common(one: str, other: str) -> int:
    """The length of the common beginning of two texts."""
    pairs = enumerate(zip(one, other, strict=False))
    return next((at for at, (a, b) in pairs if a != b), min(len(one), len(other)))


def reasons(then: Run, now: Run) -> list[RunReason]:
    """Why the answer of `now` may differ from that of `then`, whose request it repeats."""
    found: list[RunReason] = []

    def differs(code: str, what: str, was: object, is_now: object) -> None:
        if was != is_now:
            found.append(RunReason(code, f"{what} was {was}, and is {is_now}"))

    for name in ("repository_id", "revision", "content_digest", "quantization", "dtype"):
        was, is_now = getattr(then.model, name), getattr(now.model, name)
        differs("model", f"{name} of the model", was, is_now)
    if then.prompt_tokens != now.prompt_tokens:
        differs("prompt", "the number of prompt tokens", then.prompt_tokens, now.prompt_tokens)
    differs("steering", "the digest of the steering", then.steering.state, now.steering.state)
    for name in sorted({*then.versions, *now.versions}):
        versions = then.versions.get(name), now.versions.get(name)
        differs("version", f"the version of {name}", *versions)
    differs("processor", "the device", then.machine.device, now.machine.device)
    differs("processor", "the processor", then.machine.processor, now.machine.processor)
    if then.machine.probe != now.machine.probe:
        found.append(RunReason("logits", "the engine computes other logits of the same tokens"))
    for name in ("default_max_tokens", "continuous_batching"):
        was, is_now = getattr(then.settings, name), getattr(now.settings, name)
        differs("settings", name.upper(), was, is_now)
    alone = then.seed is not None and not (
        then.settings.continuous_batching or now.settings.continuous_batching
    )
    if not alone and not (then.machine.shares_passes and now.machine.shares_passes):
        why = "without a seed of its own, the last bits depend on the requests that run beside it"
        found.append(RunReason("neighbours", why))
    return found
