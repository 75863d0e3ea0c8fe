"""GGUF models on this machine: which files belong together, and the facts in their headers. No tensor is read."""

from __future__ import annotations

import os
import re
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from steerserve.errors import Refusal
from steerserve.files.gguf_part import LAYERS_MAXIMUM, Allowance, Part, read_part
from steerserve.rules.models import gguf
from steerserve.rules.models.architecture import is_embedding_only
from steerserve.rules.models.gguf_header import Header
from steerserve.rules.models.gguf_layout import WEIGHTS_MAXIMUM, GGUFError, shown
from steerserve.rules.models.gguf_types import label_of

__all__ = ["GGUFError", "entry", "listing", "read_header"]

FOLDERS_DEEP = 3
FILES_MAXIMUM = 10_000
SHARDS_MAXIMUM = 512
"""The most files of a split model."""

_SHARD = re.compile(r"-(\d{5})-of-(\d{5})(?=\.gguf$)", re.IGNORECASE)
_ARCHITECTURE = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")


def listing(folder: Path) -> gguf.GgufListing:
    """The models in a folder and in its subfolders."""
    files: list[tuple[str, int]] = []
    for place, folders, names in os.walk(folder):
        inside = Path(place).relative_to(folder)
        if len(inside.parts) >= FOLDERS_DEEP:
            folders.clear()
        for name in names:
            file = Path(place) / name
            if name.lower().endswith(".gguf") and file.is_file():
                files.append(((inside / name).as_posix(), file.stat().st_size))
            if len(files) > FILES_MAXIMUM:
                raise GGUFError("the folder has too many GGUF files")
    return gguf.variants(files)


def entry(path: Path, label: str | None = None) -> tuple[Path, ...]:
    """The files of the model at `path`, in the order of their shards. The path is a file, or a folder with only one
    model, or only one with the label `label`.

    Raises:
        GGUFError: there is no such model, or more than one, or a part of it is missing.
    """
    if path.is_dir():
        return _entry_of_folder(path, label)
    if not path.name.lower().endswith(".gguf") or not path.is_file():
        raise GGUFError("the path is neither a .gguf file nor a folder")
    shard = _SHARD.search(path.name)
    if not shard:
        return (path,)
    count = int(shard[2])
    if count > SHARDS_MAXIMUM:
        raise GGUFError(f"{path.name} names {count} parts, more than any model has")
    files = []
    for number in range(1, count + 1):
        file = path.with_name(_SHARD.sub(f"-{number:05d}-of-{count:05d}", path.name))
        if not file.is_file():
            raise GGUFError(f"{file.name} is missing: a split model needs all its {count} parts")
        files.append(file)
    if path not in files:
        raise GGUFError(f"{path.name} is not a part of a split model")
    return tuple(files)


def _entry_of_folder(folder: Path, label: str | None) -> tuple[Path, ...]:
    offers = listing(folder)
    offered = offers.variants
    if label is not None:
        try:
            offered = (gguf.choose(offers, label),)
        except Refusal as refusal:
            raise GGUFError(refusal.message) from None
    if len(offered) > 1:
        names = ", ".join(variant.name for variant in offered)
        raise GGUFError(f"the folder has several GGUF models ({names}): name one file")
    if not offered:
        why = "; ".join(f"{p.kind}: {', '.join(p.paths[:4])}" for p in offers.problems)
        raise GGUFError(f"the folder has no complete GGUF model{f' ({why})' if why else ''}")
    return tuple(folder / file.path for file in offered[0].files)


def read_header(files: Sequence[Path]) -> Header:
    """The header of a model, combined from all its shards.

    Raises:
        GGUFError: a file is damaged, ends within its header, is not a language model, or is not a part of this model.
    """
    parts: list[Part] = []
    allowance, owners = Allowance(), dict[str, str]()
    for number, file in enumerate(files):
        part = read_part(file, allowance)
        _check_shard(part, number, len(files), file.name)
        for tensor in part.tensors:
            other = owners.setdefault(tensor.name, file.name)
            if other != file.name:
                raise GGUFError(f"{other} and {file.name} have one tensor: {shown(tensor.name)}")
        parts.append(part)
    named = parts[0].count("split.tensors.count")
    if named and named != len(owners):
        raise GGUFError(f"the model has {len(owners)} tensors in place of {named}")
    return _header(parts)


def _check_shard(part: Part, number: int, count: int, name: str) -> None:
    said = part.count("split.count")
    if said and said != count:
        raise GGUFError(f"{name} is one of {said} parts, but {count} are there")
    if count > 1 and ("split.no" not in part.values or part.count("split.no") != number):
        raise GGUFError(f"{name} is not part {number + 1} of this model")


def _header(parts: list[Part]) -> Header:
    first = parts[0]
    architecture = _architecture(first)
    types = sum((part.types for part in parts), Counter[str]())
    layers = first.count(f"{architecture}.block_count", LAYERS_MAXIMUM)
    hidden = first.count(f"{architecture}.embedding_length")
    heads = _per_layer(first, f"{architecture}.attention.head_count", layers, (0,) * layers)
    kv_heads = _per_layer(first, f"{architecture}.attention.head_count_kv", layers, heads)
    most_heads = max(heads, default=0)
    head_length = hidden // most_heads if most_heads else 0
    is_causal = first.values.get(f"{architecture}.attention.causal", True)
    parameters = sum(part.parameters for part in parts)
    if parameters > WEIGHTS_MAXIMUM:
        raise GGUFError("the header lists more weights than any model has")
    return Header(
        architecture=architecture,
        name=_text(first, "general.name"),
        parameters=parameters,
        context_length=first.count(f"{architecture}.context_length") or None,
        layers=layers,
        hidden_size=hidden,
        heads=most_heads,
        kv_heads=kv_heads,
        key_length=first.count(f"{architecture}.attention.key_length") or head_length,
        value_length=first.count(f"{architecture}.attention.value_length") or head_length,
        vocabulary=first.tokens or first.count(f"{architecture}.vocab_size"),
        longest_token=first.longest_token,
        label=label_of(first.values.get("general.file_type")) or _dominant(types),
        chat_template=_text(first, "tokenizer.chat_template")
        or _text(first, "tokenizer.chat_template.default"),
        bos_id=first.id_of("bos"),
        eos_id=first.id_of("eos"),
        bos_token=first.token_texts.get("bos"),
        eos_token=first.token_texts.get("eos"),
        is_embedding_only=is_embedding_only(architecture, "gguf") or is_causal is False,
        shards=len(parts),
        size_bytes=sum(part.stamp.size for part in parts),
        missing_bytes=sum(part.missing for part in parts),
        tensor_bytes=sum(part.tensor_bytes for part in parts),
        embedding_bytes=sum(part.embedding_bytes for part in parts),
        stamps=tuple(part.stamp for part in parts),
    )


def _architecture(part: Part) -> str:
    architecture = _text(part, "general.architecture")
    if architecture is None:
        raise GGUFError("the header names no architecture")
    if not _ARCHITECTURE.fullmatch(architecture):
        raise GGUFError(f"the header names an impossible architecture: {shown(architecture)}")
    kind = _text(part, "general.type") or "model"
    if kind != "model" or architecture == "clip":
        raise GGUFError(f"the file is no language model, but of the kind {kind[:40]!r}")
    return architecture


def _text(part: Part, key: str) -> str | None:
    value = part.values.get(key)
    return value if isinstance(value, str) and value else None


def _per_layer(part: Part, key: str, layers: int, default: tuple[int, ...]) -> tuple[int, ...]:
    """One number per layer. Some architectures list a number for each layer; most have one number for all layers."""
    value = part.values.get(key)
    if value is None:
        return default
    if not isinstance(value, list):
        return (part.count(key, LAYERS_MAXIMUM),) * layers
    if len(value) < layers or not all(0 <= heads <= LAYERS_MAXIMUM for heads in value):
        raise GGUFError(f"{key[:80]} does not fit the layers")
    return tuple(value[:layers])


def _dominant(types: Counter[str]) -> str:
    """The tensor type of the largest number of weights."""
    return types.most_common(1)[0][0] if types else "unknown"
