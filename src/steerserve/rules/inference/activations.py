"""SAE activations in answers: which SAE, features and positions a request may ask for, and how many values."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from steerserve.errors import Refusal
from steerserve.rules.saes.attachment import Sae, SaeChoice
from steerserve.rules.sensing.ranking import RANKS, Rank

FIELD = "return_sae_activations"
FIELDS = frozenset(
    {"sae_id", "layer", "features", "top_k", "positions", "read_point", "stream_positions", "rank"}
)
NAMED_POSITIONS = ("last", "prompt", "completion", "all")
READ_POINTS = ("post_steering", "pre_steering")
DEFAULT_TOP_K = 10
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


def parse(raw: object, max_top_k: int) -> Activations:
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


def check_engine(asked: Activations | None, engine: str) -> None:
    """Raises:
    Refusal: SAE_ACTIVATIONS_REFUSED on a GGUF model, whose layers no SAE reads.
    """
    if asked is not None and engine == "gguf":
        raise Refusal(
            "SAE_ACTIVATIONS_REFUSED",
            f"{FIELD}: a GGUF model has no layers that an SAE could read",
            param=FIELD,
        )


def site(asked: Activations, attached: Sequence[Sae]) -> Sae:
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
