"""`return_sae_activations`: the activations of an attached SAE in an answer. A request says which SAE, which features
and which positions it means, and the answer has a bounded number of values."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import zip_longest
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from msgspec import structs

from steerserve.errors import Refusal
from steerserve.messages import Message
from steerserve.parts.part import BodyField, Lookups, Part, Resident, Sent
from steerserve.rules.inference.names import GGUF, RESPONSES
from steerserve.rules.saes.attachment import Sae, SaeChoice
from steerserve.rules.sensing import ranking
from steerserve.rules.sensing.ranking import RANKS, Rank, Scales

if TYPE_CHECKING:
    from steerserve.settings import Settings

FIELD = "return_sae_activations"
FIELDS: Mapping[str, Any] = MappingProxyType(
    {
        **dict.fromkeys(("features", "layer")),
        "positions": dict.fromkeys(("start", "end")),
        **dict.fromkeys(("rank", "read_point", "sae_id", "stream_positions", "top_k")),
    }
)
"""The fields of its value."""
CODE = "SAE_ACTIVATIONS_REFUSED"
NAMED_POSITIONS = ("last", "prompt", "completion", "all")
READ_POINTS = ("post_steering", "pre_steering")
UNSTEERED = "unsteered"
"""The read point of a scoring request."""
DEFAULT_TOP_K = 10
NOTE = "the last sampled token has no activation: no forward pass reads it"
NOTE_SCORED = "a scoring pass reads the prompt only"
_LARGEST = 2**31 - 1

Positions = str | tuple[int, int]


@dataclass(frozen=True, slots=True)
class Activations:
    """The activations that a request asks for.

    Attributes:
        sae_id: the attached SAE; None means the only one.
        layer: the layer at which the SAE is attached; None means the only one.
        features: the features that may be reported; None means all.
        top_k: how many features are reported for each position, the largest activations first.
        positions: a named set, or [start, end) counted from the beginning of the prompt, `end` not included.
        read_point: whether the activations are read after the SAE's own steering was added, or before.
        is_streamed: whether a stream sends the activations of each position with the chunk of its token.
        rank: the order in which features are listed.
        read_k: of how many of the largest they are chosen, where they are not ranked by value; None otherwise.
        told_point: the read point as the answer names it.
    """

    sae_id: str | None = None
    features: tuple[int, ...] | None = None
    top_k: int = DEFAULT_TOP_K
    positions: Positions = "last"
    read_point: str = "post_steering"
    layer: int | None = None
    is_streamed: bool = False
    rank: Rank = "value"
    read_k: int | None = None
    told_point: str = READ_POINTS[0]


class Tap(Message, frozen=True):
    """Activations to read at the attached SAE `key`. With `is_streamed` the readings of a position are sent as soon as
    the position was read."""

    key: str
    features: list[int] | None
    top_k: int
    positions: str | tuple[int, int]
    is_before: bool
    max_entries: int
    is_streamed: bool = False


class Reading(Message, frozen=True):
    """Features at one position, as [index, value]: the largest by magnitude first, equals by index. `text` is the text
    of the token; empty where the readings are not streamed. `weights` has the number of each feature by which they are
    ranked, where that is not the value."""

    position: int
    token: int
    features: list[tuple[int, float]]
    text: str = ""
    weights: list[float] = []


@dataclass(frozen=True, slots=True)
class PlannedActivations:
    """The activations of the SAE `sae_id` at `layer`. `scales` is what features are ranked by, where they are not
    ranked by value, and `labels` are the labels of features."""

    form: Tap
    asked: Activations
    sae_id: str
    layer: int
    scales: Scales | None = None
    labels: Mapping[int, str] = field(default_factory=dict)


class ActivationsPart(Part[Tap, list[Reading]]):
    name = "activations"
    fields = MappingProxyType(
        {
            FIELD: BodyField(
                "steerserve.parts.activations.body:ReturnActivations",
                is_refused=False,
                is_scored=True,
                known=FIELDS,
                code=CODE,
            )
        }
    )
    told = MappingProxyType({"sae_activations": "steerserve.parts.activations.body:SaeActivations"})
    form = Tap
    chunk = list[Reading]
    row = "steerserve.parts.activations.row:ActivationsRow"
    reads_saes = True
    is_late = True

    def parse(self, body: Mapping[str, Any], sent: Sent) -> Activations | None:
        """Raises:
        Refusal: SAE_ACTIVATIONS_REFUSED.
        """
        raw = body.get(FIELD)
        if raw is None:
            return None
        given = raw.model_dump(exclude_unset=True)
        parsed = parse_value(given, sent.settings.sae_activations_max_top_k)
        if sent.n > 1:
            raise Refusal(CODE, f"{FIELD} needs n: 1", param=FIELD)
        if sent.prompts > 1:
            why = f"{FIELD} needs one prompt, and no extra_messages"
            raise Refusal(CODE, why, param=FIELD)
        # a response has the activations at its end, also in a stream
        may_stream = sent.is_stream and sent.route != RESPONSES
        read_point = UNSTEERED if sent.is_scored else parsed.read_point
        return replace(parsed, is_streamed=parsed.is_streamed and may_stream, told_point=read_point)

    def find_unused(self, body: Mapping[str, Any], route: str) -> list[str]:
        """Only a stream sends activations position by position."""
        asked = body.get(FIELD)
        streams = body.get("stream") and route != RESPONSES
        if not isinstance(asked, Mapping) or streams or not asked.get("stream_positions"):
            return []
        return [f"{FIELD}.stream_positions"]

    def check_counts(self, body: Mapping[str, Any], settings: Settings) -> None:
        """Raises:
        Refusal: SAE_ACTIVATIONS_REFUSED for too many features.
        """
        asked = body.get(FIELD)
        features = asked.get("features") if isinstance(asked, dict) else None
        most = settings.sae_activations_max_entries
        if isinstance(features, list | dict) and len(features) > most:
            where = f"{FIELD}.features"
            raise Refusal(CODE, f"{where}: at most {most} features", param=where)

    def check_engine(self, asked: Activations, engine: str) -> None:
        """Raises:
        Refusal: SAE_ACTIVATIONS_REFUSED on a GGUF model, whose layers no SAE reads.
        """
        if engine == GGUF:
            why = f"{FIELD}: a GGUF model has no layers that an SAE could read"
            raise Refusal(CODE, why, param=FIELD)

    def plan(self, asked: Activations, resident: Resident) -> PlannedActivations:
        """Raises:
        Refusal: SAE_ACTIVATIONS_REFUSED as `find_sae`.
        """
        sae = find_sae(asked, resident.attached)
        tap = Tap(
            key=sae.key,
            features=None if asked.features is None else list(asked.features),
            top_k=asked.read_k or asked.top_k,
            positions=asked.positions,
            is_before=asked.read_point == "pre_steering",
            max_entries=resident.settings.sae_activations_max_entries,
            is_streamed=asked.is_streamed,
        )
        return PlannedActivations(tap, asked, sae.sae_id, sae.layer)

    async def prepare(self, planned: PlannedActivations, look: Lookups) -> PlannedActivations:
        """Raises:
        Refusal: INVALID_PARAMETER where features are ranked and nothing is known of them; DATABASE_UNAVAILABLE.
        """
        scales = None
        if planned.asked.rank != "value":
            scales = await look.scales(planned.form.key)
            if scales is None:
                raise ranking.unknown(f"{FIELD}.rank")
        return replace(planned, scales=scales, labels=await look.labels(planned.sae_id))

    def change(self, planned: PlannedActivations, chunk: list[Reading]) -> list[Reading]:
        """The readings with their features in the order that was asked for."""
        asked, scales = planned.asked, planned.scales
        if scales is None:
            return chunk
        told = []
        for one in chunk:
            features = ranking.best(one.features, asked.rank, scales, asked.top_k)
            weights = [scales.weight(asked.rank, *feature) for feature in features]
            told.append(structs.replace(one, features=features, weights=weights))
        return told

    def is_streamed(self, planned: PlannedActivations) -> bool:
        return planned.form.is_streamed

    def tell(
        self,
        planned: PlannedActivations,
        chunks: Mapping[int, Sequence[list[Reading]]],
        texts: Sequence[str],
    ) -> dict[str, object]:
        """The readings of one choice. A feature without a label has no field `label`."""
        is_streamed, read_point = planned.form.is_streamed, planned.asked.told_point
        told = {
            "sae_id": planned.sae_id,
            "layer": planned.layer,
            "read_point": read_point,
            "positions": [
                {
                    "position": one.position,
                    "token_id": one.token,
                    **({"text": one.text} if is_streamed else {}),
                    "features": [
                        labelled(i, value, planned.labels)
                        | ({} if weight is None else {"weight": weight})
                        for (i, value), weight in zip_longest(one.features, one.weights)
                    ],
                }
                for parts in chunks.values()
                for part in parts
                for one in part
            ],
            **({} if is_streamed else {"note": NOTE_SCORED if read_point == UNSTEERED else NOTE}),
        }
        return {"sae_activations": told}


ACTIVATIONS = ActivationsPart()


def parse_value(raw: object, max_top_k: int) -> Activations:
    """The value of the field `return_sae_activations`, after every check that needs no model.

    Raises:
        Refusal: SAE_ACTIVATIONS_REFUSED, whose `param` names the wrong part of the value.
    """
    if not isinstance(raw, Mapping):
        raise _refused("", "an object")
    sae_id = raw.get("sae_id")
    if sae_id is not None and not (isinstance(sae_id, str) and sae_id):
        raise _refused("sae_id", "the id of an attached SAE")
    layer = raw.get("layer")
    if layer is not None and not (_is_int(layer) and 0 <= layer <= _LARGEST):
        raise _refused("layer", "a layer of the model, counted from 0")
    features = _features(raw.get("features"))
    top_k = raw.get("top_k")
    if top_k is None:
        top_k = len(features) if features is not None else min(DEFAULT_TOP_K, max_top_k)
        if top_k > max_top_k:
            raise _refused("top_k", f"given with more than {max_top_k} features")
    elif not _is_int(top_k) or not 1 <= top_k <= max_top_k:
        raise _refused("top_k", f"an integer from 1 to {max_top_k}")
    read_point = raw.get("read_point")
    if read_point is not None and read_point not in READ_POINTS:
        raise _refused("read_point", f"one of {', '.join(READ_POINTS)}")
    is_streamed = raw.get("stream_positions")
    if is_streamed is not None and type(is_streamed) is not bool:
        raise _refused("stream_positions", "true or false")
    rank = raw.get("rank")
    if rank is not None and rank not in RANKS:
        raise _refused("rank", f"one of {', '.join(RANKS)}")
    return Activations(
        sae_id,
        features,
        top_k,
        _positions(raw.get("positions")),
        read_point or READ_POINTS[0],
        layer,
        bool(is_streamed),
        rank or "value",
        None if rank in (None, "value") else max_top_k,
    )


def labelled(index: int, value: float, labels: Mapping[int, str]) -> dict[str, int | float | str]:
    """A feature of a reading in the form of answers. A feature without a label has no field `label`."""
    feature: dict[str, int | float | str] = {"index": index, "value": value}
    return feature | {"label": labels[index]} if index in labels else feature


def find_sae(asked: Activations, attached: Sequence[Sae]) -> Sae:
    """The attached SAE that the request names.

    Raises:
        Refusal: SAE_ACTIVATIONS_REFUSED when no attached SAE or more than one fits, or the SAE has fewer features than
            the request names.
    """
    choice = SaeChoice(asked.sae_id, asked.layer)
    fitting = choice.among(attached)
    listed = [{"sae_id": sae.sae_id, "layer": sae.layer} for sae in attached]
    if not SaeChoice(asked.sae_id).among(attached):
        named = f"; SAE {asked.sae_id!r} is not attached" if asked.sae_id else "; none is attached"
        raise _refused("sae_id", f"the id of an attached SAE{named}", attached=listed)
    if not fitting:
        who = f"SAE {asked.sae_id!r} is not" if asked.sae_id else "no SAE is"
        why = f"the layer of an attached SAE; {who} attached at layer {asked.layer}"
        raise _refused("layer", why, attached=listed)
    if len(fitting) > 1:
        # the layer tells one SAE at two layers apart, the ids tell several SAEs apart
        part = "layer" if len({sae.sae_id for sae in fitting}) == 1 else "sae_id"
        raise _refused(part, "one SAE at one layer; several could be meant", attached=listed)
    sae = fitting[0]
    for index in asked.features or ():
        if index >= sae.d_sae:
            raise _refused(
                "features",
                f"indices in [0, {sae.d_sae}); {index} is not",
                feature_idx=index,
                d_sae=sae.d_sae,
            )
    return sae


def most_positions(positions: Positions, prompt_tokens: int, max_tokens: int) -> int:
    """The largest number of positions that can be read, if the completion has all of its `max_tokens`."""
    match positions:
        case "last":
            return 1
        case "prompt":
            return prompt_tokens
        case "completion":
            return max_tokens
        case "all":
            return prompt_tokens + max_tokens
        case (start, end):
            return max(0, min(int(end), prompt_tokens + max_tokens) - int(start))
    raise AssertionError(positions)


def check_entries(
    positions: Positions, top_k: int, prompt_tokens: int, max_tokens: int, maximum: int
) -> None:
    """Raises:
    Refusal: SAE_ACTIVATIONS_REFUSED when the answer could have more than `maximum` entries.
    """
    entries = most_positions(positions, prompt_tokens, max_tokens) * top_k
    if entries > maximum:
        raise _refused(
            "positions",
            f"fewer positions or a smaller top_k: up to {entries} entries, more than {maximum}",
            entries=entries,
            max_entries=maximum,
        )


def span(positions: Positions, prompt_tokens: int, start: int, end: int) -> tuple[int, int]:
    """The positions to read in a pass over the positions [start, end). For `last` this is the last position of the
    pass."""
    match positions:
        case "last":
            return end - 1, end
        case "prompt":
            low, high = 0, prompt_tokens
        case "completion":
            low, high = prompt_tokens, end
        case "all":
            low, high = 0, end
        case (low, high):
            pass
    low, high = max(start, low), min(end, high)
    return (low, high) if low < high else (end, end)


def _features(raw: Any) -> tuple[int, ...] | None:
    if raw is None:
        return None
    is_list = isinstance(raw, list) and bool(raw)
    if not is_list or not all(_is_int(i) and 0 <= i <= _LARGEST for i in raw):
        raise _refused(
            "features", "a list of feature indices, at least one, each a whole number from 0"
        )
    return tuple(dict.fromkeys(raw))


def _positions(raw: object) -> Positions:
    if raw is None:
        return "last"
    if isinstance(raw, str) and raw in NAMED_POSITIONS:
        return raw
    if isinstance(raw, Mapping) and set(raw) == {"start", "end"}:
        start, end = raw["start"], raw["end"]
        if _is_int(start) and _is_int(end) and 0 <= start < end <= _LARGEST:
            return start, end
    raise _refused(
        "positions",
        f"one of {', '.join(NAMED_POSITIONS)}, or {{start, end}} with 0 <= start < end",
    )


def _is_int(value: object) -> bool:
    return type(value) is int


def _refused(part: str, expected: str, **details: object) -> Refusal:
    where = f"{FIELD}.{part}" if part else FIELD
    return Refusal("SAE_ACTIVATIONS_REFUSED", f"{where} must be {expected}", param=where, **details)
