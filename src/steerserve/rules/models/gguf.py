"""What the names of GGUF files tell: the quantization, and which files are one model. Also the proportions over
cards."""

from __future__ import annotations

import math
import re
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from steerserve.errors import Refusal
from steerserve.rules.field_faults import refuse_value

_QUANTIZATION = (
    r"BF16|FP?16|FP?32|F64|MXFP4(?:_MOE)?|NVFP4|TQ[12]_0"
    r"|IQ[1-4]_(?:XXS|XS|NL|S|M|L|XL)(?:_[A-Z]{1,3})?"
    r"|Q[1-8]_K(?:_(?:XXS|XS|S|M|L|XL|P))?"
    r"|Q[1-8]_[01](?:_[48]_[48]|_G\d+)?(?:_(?:XL|L))?"
)
_LABEL = re.compile(rf"(?<![A-Z0-9])(UD[-_])?({_QUANTIZATION})(?![A-Z0-9]|_[A-Z0-9])")
_SHARD = re.compile(r"-(\d{5})-of-(\d{5})$", re.IGNORECASE)
_BITS = re.compile(r"(?:^|[^A-Z])(?:I|T)?Q(\d)_")
_PLAIN = re.compile(r"(?:BF|FP?)(?:16|32|64)$")
_SUFFIX = ".gguf"

MODEL = "model"
PROJECTOR = "projector"
_OTHER_KINDS = (
    (PROJECTOR, re.compile(r"mmproj|(?:^|[-_.])(?:clip|vision-?(?:proj|adapter|encoder))")),
    ("importance_matrix", re.compile(r"imatrix")),
    ("adapter", re.compile(r"(?:^|[-_.])lora(?:[-_.]|$)")),
    ("vocabulary", re.compile(r"(?:^|[-_.])vocab(?:[-_.]|$)")),
)
_UNQUANTIZED = frozenset({"importance_matrix", "vocabulary"})
"""Kinds of files that are never quantized. A file of such a kind with a quantization in its name is a model."""


@dataclass(frozen=True, slots=True)
class GgufFile:
    """A file of a repository or folder. Its path has `/` between folders."""

    path: str
    size_bytes: int


@dataclass(frozen=True, slots=True)
class GgufName:
    """The facts in the name of a file. `label` is None if the name has no quantization. `shard` is (number, count),
    numbered from 1."""

    kind: str
    label: str | None
    base: str
    shard: tuple[int, int] | None = None


@dataclass(frozen=True, slots=True)
class GgufVariant:
    """One complete model, with its files in the order of their shards. `label` is None if only the header tells the
    quantization."""

    label: str | None
    base: str
    files: tuple[GgufFile, ...]

    @property
    def name(self) -> str:
        """The label, or the file's own name if it has no label."""
        return self.label or self.base

    @property
    def total_bytes(self) -> int:
        return sum(file.size_bytes for file in self.files)

    @property
    def is_split(self) -> bool:
        return len(self.files) > 1

    @property
    def quant_parsed(self) -> bool:
        return self.label is not None


@dataclass(frozen=True, slots=True)
class Problem:
    """Files that are not offered. `kind` is `incomplete` (shards are missing) or `ambiguous` (several models have one
    label)."""

    kind: str
    name: str
    paths: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class GgufListing:
    """The models that a repository or folder offers, the smallest first. `companions` are projectors, which are not
    weights of a language model."""

    variants: tuple[GgufVariant, ...] = ()
    problems: tuple[Problem, ...] = ()
    companions: tuple[GgufFile, ...] = field(default=())


def classify(path: str) -> GgufName:
    """The facts in the path of a file. The label is the last one in the file's name; without one, that of the nearest
    folder."""
    *folders, name = path.split("/")
    if not name.lower().endswith(_SUFFIX):
        return GgufName("other", None, name)
    stem = name[: -len(_SUFFIX)]
    shard = None
    if shard_match := _SHARD.search(stem):
        shard = int(shard_match[1]), int(shard_match[2])
        stem = stem[: shard_match.start()]
    lowered = stem.lower()
    label, base = _labelled(stem)
    kind = next((kind for kind, pattern in _OTHER_KINDS if pattern.search(lowered)), MODEL)
    if label and kind in _UNQUANTIZED:
        kind = MODEL  # `imatrix` or `vocab` only tells how the model was made
    for folder in reversed(folders):
        label = label or _labelled(folder)[0]
    return GgufName(kind, label, base, shard)


def variants(files: Iterable[tuple[str, int]]) -> GgufListing:
    """The models among files, given as (path, size in bytes); also the files that cannot be offered, and the
    companions."""
    sets: dict[tuple[str, str, int], list[tuple[GgufName, GgufFile]]] = defaultdict(list)
    companions = []
    for path, size in sorted(files):
        name, file = classify(path), GgufFile(path, size)
        if name.kind == MODEL:
            count = name.shard[1] if name.shard else 0
            # the folder is a part of the key, because several folders may hold files of the same names
            sets[path.rpartition("/")[0], _without_shard(path), count].append((name, file))
        elif name.kind == PROJECTOR:
            companions.append(file)
    complete, problems = [], []
    for members in sets.values():
        first, shards = members[0][0], tuple(file for _, file in members)
        if _is_whole(members):
            complete.append(GgufVariant(first.label, first.base, shards))
        else:
            paths = tuple(file.path for file in shards)
            problems.append(Problem("incomplete", first.label or first.base, paths))
    offered, ambiguous = _told_apart(complete)
    return GgufListing(tuple(offered), (*problems, *ambiguous), tuple(companions))


def choose(listing: GgufListing, label: str) -> GgufVariant:
    """The variant with a label. Letter case does not matter.

    Raises:
        Refusal: VALIDATION_ERROR naming `gguf_label` and the available labels.
    """
    for variant in listing.variants:
        if variant.name.casefold() == label.strip().casefold():
            return variant
    raise _not_chosen(listing, f"there is no complete GGUF quantization {label[:64]!r} here")


def only(listing: GgufListing) -> GgufVariant:
    """The only variant of a listing.

    Raises:
        Refusal: VALIDATION_ERROR naming `gguf_label` and the available labels.
    """
    if len(listing.variants) != 1:
        raise _not_chosen(listing, "one GGUF quantization has to be named")
    return listing.variants[0]


def _not_chosen(listing: GgufListing, why: str) -> Refusal:
    available = [variant.name for variant in listing.variants]
    message = f"{why}; there is {', '.join(available) or 'none'}"
    place, fault = ["body", "gguf_label"], "not one of the labels"
    return refuse_value(place, fault, message, param="gguf_label", available=available)


def precision_of(label: str | None) -> str:
    """The precision (FP16, Q8, Q4 or Q2) of a label, by the bits per weight that it names. A label without such bits is
    unquantized, so FP16."""
    upper = (label or "").upper()
    if "FP4" in upper:
        return "Q4"
    bits_match = _BITS.search(upper)
    if _PLAIN.search(upper) or not bits_match:
        return "FP16"
    bits = int(bits_match[1])
    if bits > 4:
        return "Q8"
    return "Q4" if bits > 2 else "Q2"


def tensor_split(text: str, cards: int) -> tuple[float, ...] | None:
    """The proportions in GGUF_TENSOR_SPLIT, one for each card; None if the setting is empty.

    Raises:
        Refusal: INVALID_GGUF_TENSOR_SPLIT.
    """
    if not text.strip():
        return None
    try:
        shares = tuple(float(part) for part in text.split(","))
    except ValueError:
        raise _bad_split("is not a list of numbers separated by commas", cards) from None
    if not all(math.isfinite(share) and share >= 0 for share in shares):
        raise _bad_split("has a proportion that is negative or not finite", cards)
    if len(shares) != cards:
        raise _bad_split(
            f"names {len(shares)} proportions, but the engine sees {cards} cards", cards
        )
    if not 0 < sum(shares) < math.inf:
        raise _bad_split("gives no card anything", cards)
    return shares


def _bad_split(why: str, cards: int) -> Refusal:
    return Refusal("INVALID_GGUF_TENSOR_SPLIT", f"GGUF_TENSOR_SPLIT {why}", cards=cards)


def _labelled(stem: str) -> tuple[str | None, str]:
    """The last label in a name, and the name without it."""
    labels = list(_LABEL.finditer(stem.upper()))
    # if a letter has a capital of two letters, positions in the upper-case text do not fit the original
    if not labels or len(stem.upper()) != len(stem):
        return (_spelled(labels[-1]) if labels else None), stem
    last = labels[-1]
    rest = (stem[: last.start()] + stem[last.end() :]).strip("-._")
    return _spelled(last), rest


def _spelled(match: re.Match[str]) -> str:
    plain = match[2].replace("FP16", "F16").replace("FP32", "F32")
    return f"UD-{plain}" if match[1] else plain


def _without_shard(path: str) -> str:
    return _SHARD.sub("", path[: -len(_SUFFIX)])


def _is_whole(members: Sequence[tuple[GgufName, GgufFile]]) -> bool:
    shards = [name.shard for name, _ in members]
    if shards[0] is None:
        return True
    count = shards[0][1]
    # the lengths are compared first, because a name may count a hundred thousand files
    return len(shards) == count and shards == [(n, count) for n in range(1, count + 1)]


def _told_apart(complete: list[GgufVariant]) -> tuple[list[GgufVariant], list[Problem]]:
    """The variants whose name no other variant has, the smallest first; and the variants that share a name, as
    problems."""
    named: dict[str, list[GgufVariant]] = defaultdict(list)
    for variant in sorted(complete, key=lambda v: (v.total_bytes, v.files[0].path)):
        named[variant.name.casefold()].append(variant)
    offered = [same[0] for same in named.values() if len(same) == 1]
    problems = [
        Problem("ambiguous", same[0].name, tuple(f.path for v in same for f in v.files))
        for same in named.values()
        if len(same) > 1
    ]
    return offered, problems
