"""Untrusted checkpoints that lie, or that cost much: each is a copy of a tiny checkpoint with one damage."""

from __future__ import annotations

import json
import os
import shutil
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

from safetensors.torch import load_file, save_file

from tests.worker import models
from tests.worker.running import with_bos

Damage = Callable[[Path], object]


def make(folder: Path, damage: Damage | None = None) -> Path:
    """A small llama checkpoint with a tokenizer, then damaged."""
    with_bos(models.save("llama", folder))
    if damage is not None:
        damage(folder)
    return folder


def copy(source: Path, folder: Path, damage: Damage) -> Path:
    shutil.copytree(source, folder)
    damage(folder)
    return folder


def edited(name: str, **values: Any) -> Damage:
    """Other values in a JSON file. A name with dots leads into the values of a value."""

    def edit(folder: Path) -> None:
        whole = json.loads((folder / name).read_text())
        for path, value in values.items():
            *outer, last = path.split(".")
            inner = whole
            for key in outer:
                inner = inner[key]
            inner[last] = value
        (folder / name).write_text(json.dumps(whole))

    return edit


def config(**values: Any) -> Damage:
    return edited("config.json", **values)


def tokenizer(**values: Any) -> Damage:
    return edited("tokenizer.json", **values)


def text(name: str, content: str) -> Damage:
    return lambda folder: (folder / name).write_text(content)


def pipe(name: str) -> Damage:
    def replace(folder: Path) -> None:
        (folder / name).unlink()
        os.mkfifo(folder / name)

    return replace


def link(name: str, target: str) -> Damage:
    def replace(folder: Path) -> None:
        (folder / name).unlink()
        (folder / name).symlink_to(target)

    return replace


def doubling(character: str, times: int = 40) -> list[dict[str, Any]]:
    double = {"type": "Replace", "pattern": {"String": character}, "content": 2 * character}
    return [double] * times


def header(change: Callable[[dict[str, Any]], object]) -> Damage:
    """Another header in the file of the weights."""

    def rewrite(folder: Path) -> None:
        file = folder / "model.safetensors"
        raw = file.read_bytes()
        (size,) = struct.unpack("<Q", raw[:8])
        entries = json.loads(raw[8 : 8 + size])
        change(entries)
        new = json.dumps(entries).encode()
        file.write_bytes(struct.pack("<Q", len(new)) + new + raw[8 + size :])

    return rewrite


def overlap(entries: dict[str, Any]) -> None:
    """Two tensors of the same shape share their bytes."""
    same: dict[tuple[Any, ...], Any] = {}
    for name, entry in entries.items():
        if name == "__metadata__":
            continue
        first = same.setdefault(tuple(entry["shape"]), entry)
        if first is not entry:
            entry["data_offsets"] = first["data_offsets"]
            return


def gap(entries: dict[str, Any]) -> None:
    """The bytes of one tensor belong to no tensor."""
    names = [name for name in entries if name != "__metadata__"]
    del entries[names[1]]


def sharded(change: Callable[[dict[str, str], Path], object]) -> Damage:
    """The weights in two files with an index, which `change` gets."""

    def split(folder: Path) -> None:
        tensors = load_file(folder / "model.safetensors")
        (folder / "model.safetensors").unlink()
        names = sorted(tensors)
        cut = len(names) // 2
        where: dict[str, str] = {}
        for number, part in enumerate((names[:cut], names[cut:]), 1):
            file = f"model-0000{number}-of-00002.safetensors"
            save_file({n: tensors[n] for n in part}, folder / file, metadata={"format": "pt"})
            where |= dict.fromkeys(part, file)
        change(where, folder)
        index = {"metadata": {"total_size": 1}, "weight_map": where}
        (folder / "model.safetensors.index.json").write_text(json.dumps(index))

    return split


def everything_in(file: str) -> Callable[[dict[str, str], Path], object]:
    return lambda where, _: where.update(dict.fromkeys(where, file))


def one_in(file: str) -> Callable[[dict[str, str], Path], object]:
    return lambda where, _: where.update({min(where): file})


def swapped(where: dict[str, str], _: Path) -> None:
    """Each tensor is said to be in the other file."""
    first, second = sorted(set(where.values()))
    where.update({n: second if f == first else first for n, f in where.items()})


def twice(where: dict[str, str], folder: Path) -> None:
    """Both files have all tensors, with other values."""
    first, second = sorted(set(where.values()))
    both = load_file(folder / first) | load_file(folder / second)
    save_file(both, folder / first, metadata={"format": "pt"})
    save_file({n: t + 1 for n, t in both.items()}, folder / second, metadata={"format": "pt"})


def hanging(folder: Path) -> None:
    """A token of the vocabulary that the tokenizer doubles again and again while it is read."""
    added = json.loads((folder / "tokenizer.json").read_text())["added_tokens"]
    token = {
        **added[0],
        "id": models.VOCABULARY,
        "content": "xx",
        "normalized": True,
        "special": False,
    }
    growing = {"type": "Sequence", "normalizers": doubling("x")}
    tokenizer(normalizer=growing, added_tokens=[*added, token])(folder)


DEEP = "[" * 200_000

UNREADABLE: dict[str, Damage] = {
    "deep config": text("config.json", '{"a":' + DEEP),
    "layers": config(num_hidden_layers=10**9),
    "vocabulary": config(vocab_size=10**12),
    "context": config(max_position_embeddings=10**15),
    "header length": lambda folder: (folder / "model.safetensors").write_bytes(
        struct.pack("<Q", 2**63) + b"{}"
    ),
    "overlap": header(overlap),
    "gap": header(gap),
    "offsets": header(lambda entries: [e.pop("data_offsets", 0) for e in entries.values()]),
    "absent shard": sharded(everything_in("model-00003-of-00003.safetensors")),
    "one absent shard": sharded(one_in("absent.safetensors")),
    "outside shard": sharded(one_in("../outside.safetensors")),
    "config pipe": pipe("config.json"),
    "weights pipe": pipe("model.safetensors"),
    "large header": lambda folder: (folder / "model.safetensors").write_bytes(
        struct.pack("<Q", 1 << 25) + b" " * (1 << 25)
    ),
    "large config": text("config.json", " " * (1 << 23) + "{}"),
}
"""Checkpoints that are refused when they are registered."""

UNLOADABLE: dict[str, Damage] = {
    "deep tokenizer": text("tokenizer.json", '{"a":' + DEEP),
    "deep tokenizer config": text("tokenizer_config.json", '{"a":' + DEEP),
    "deep generation config": text("generation_config.json", '{"a":' + DEEP),
    "wide": config(intermediate_size=10**7),
    "hidden": config(hidden_size=2**20, head_dim=8),
    "heads": config(num_attention_heads=10**6, num_key_value_heads=10**6),
    "no heads": config(num_attention_heads=0),
    "negative": config(hidden_size=-32),
    "method": config(quantization_config={"quant_method": "evil"}),
    "dtype": config(dtype="evil"),
    "tokenizer pipe": pipe("tokenizer.json"),
    "endless tokenizer": link("tokenizer.json", "/dev/zero"),
    "long template": text("chat_template.jinja", " " * 2_000_000),
    "doubled text": tokenizer(normalizer={"type": "Sequence", "normalizers": doubling("x")}),
    "doubled answer": tokenizer(decoder={"type": "Sequence", "decoders": doubling("x")}),
    "hanging": hanging,
}
"""Checkpoints that are refused when they are loaded."""

SERVED: dict[str, Damage] = {
    "swapped shards": sharded(swapped),
    "shards with more tensors": sharded(twice),
}
"""Odd checkpoints that are served: their tensors are found by their names."""
