"""Lenses that were trained for one checkpoint: what is done to the residual stream after a layer before the model's own
unembedding reads it.

A tuned lens (Belrose et al., "Eliciting latent predictions from transformers with the tuned lens", 2023) adds an affine
map of the stream before block i to this stream, as the library tuned-lens stores it. A Jacobian lens multiplies the
stream after block l with the mean Jacobian of the stream after the last block, as the library jlens stores it.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from steerserve.errors import Refusal
from steerserve.messages import LensInspected
from steerserve.nouns.lens.rules import TUNED_FILES, LensKind
from steerserve.rules.bounds import LENS_INDEX_BYTES
from steerserve.rules.text import shown
from steerserve.worker.model.checkpoint import Checkpoint
from steerserve.worker.model.unembedding import Unembedding
from steerserve.worker.sae.files import check_index, open_tensors, read_json
from steerserve.worker.sae.stored import Tensors

CONFIG, PARAMETERS = TUNED_FILES

NAME_MAXIMUM = 200
COUNT_MAXIMUM = 1 << 20
_HASH = re.compile(r"[0-9a-f]{64}")
_TUNED = "linear_tuned_lens"
_JACOBIAN = re.compile(r"(?:J|parameters\.jacobians|jacobians)(?:\.([0-9]{1,4}))?")
_EDGE = 3
"""NumPy prints so many numbers from each end of a long axis."""


class TrainedLens:
    """The maps of a lens by the layer after which the stream is read.

    Attributes:
        layers: the layers that have a map. The last layer of the model needs none.
    """

    def __init__(self, kind: LensKind, tensors: Tensors, maps: Mapping[int, Map]) -> None:
        self.kind = kind
        self.layers = frozenset(maps)
        self._tensors = tensors
        self._maps = maps
        self._read: tuple[int, Tensor, Tensor | None] | None = None

    def translated(self, layer: int, stream: Tensor) -> Tensor:
        """The stream [T, hidden] after a layer as the unembedding is to read it: float32 for a layer with a map.

        Raises:
            Refusal: INVALID_LENS where the numbers contradict the header of the file.
        """
        if layer not in self.layers:
            return stream
        if self._read is None or self._read[0] != layer:
            self._read = None
            with _refused():
                self._read = (layer, *self._maps[layer].read(self._tensors, stream.device))
        _, weight, bias = self._read
        wide = stream.float()
        made = wide @ weight.t()
        if self.kind == "tuned":
            made += wide
        return made if bias is None else made + bias


@dataclass(frozen=True, slots=True)
class Map:
    """Where the matrix of a layer, and perhaps its bias, are: the names of tensors, and the row of a tensor that has
    all layers."""

    weight: str
    bias: str | None = None
    row: int | None = None

    def read(self, tensors: Tensors, device: torch.device) -> tuple[Tensor, Tensor | None]:
        """The matrix [hidden, hidden] and the bias [hidden], float32."""
        weight = tensors.read(self.weight)
        weight = weight if self.row is None else weight[self.row]
        bias = None if self.bias is None else tensors.read(self.bias).to(device, torch.float32)
        return weight.to(device, torch.float32), bias


LensFile = tuple["TrainedLens", LensInspected]
"""A lens, and what its files say about it."""


def open_lens(path: str) -> LensFile:
    """The lens in a folder of tuned-lens, or in a file of jlens. Nothing is executed, and no matrix is read yet.

    Raises:
        Refusal: INVALID_LENS for a file that cannot be read as a lens.
    """
    place = Path(path)
    with _refused():
        return _tuned(place) if place.is_dir() else _jacobian(place)


def check_lens(facts: LensInspected, model: Checkpoint, unembedding: Unembedding) -> None:
    """Raises:
    Refusal: LENS_MISMATCH where the lens was trained for another checkpoint, as far as it says for which.
    """
    _check_shape(facts, model)
    known = facts.unembed_hash
    if known is not None and known != unembed_hash(unembedding.weight()):
        why = "the lens was trained for another output embedding"
        if facts.model_name is not None:
            why += f", that of {facts.model_name}"
        raise Refusal("LENS_MISMATCH", why, base_model=facts.model_name)


def inspect(path: str) -> LensInspected:
    """The facts of the lens in a folder of tuned-lens, or in a file of jlens. Nothing is executed, and no matrix is
    read.

    Raises:
        Refusal: INVALID_LENS.
    """
    return open_lens(path)[1]


def _tensors(path: Path) -> Tensors:
    check_index(path, LENS_INDEX_BYTES)
    return open_tensors(path)


def _tuned(folder: Path) -> LensFile:
    config = read_json(folder / CONFIG)
    if config.get("lens_type", _TUNED) != _TUNED:
        raise _invalid(f"{CONFIG}: the lens_type is not {_TUNED}")
    width, layers = (_count(config, name) for name in ("d_model", "num_hidden_layers"))
    known = config.get("unembed_hash")
    if not isinstance(known, str) or not _HASH.fullmatch(known):
        raise _invalid(
            f"{CONFIG} has no unembed_hash, which says for which checkpoint it was trained"
        )
    tensors = _tensors(folder / PARAMETERS)
    maps = {}
    # the map i is of the stream before block i, which is the stream after block i - 1; before block 0 are no layers
    for block in range(1, layers):
        weight, bias = f"{block}.weight", f"{block}.bias"
        if weight not in tensors.infos:
            raise _invalid(f"{PARAMETERS} has no tensor {weight}")
        maps[block - 1] = Map(weight, bias if bias in tensors.infos else None)
        _check_shape_of(tensors, weight, (width, width))
        if bias in tensors.infos:
            _check_shape_of(tensors, bias, (width,))
    name = config.get("base_model_name_or_path")
    facts = LensInspected(
        kind="tuned",
        layers=sorted(maps),
        width=width,
        model_layers=layers,
        model_name=shown(name, NAME_MAXIMUM) if isinstance(name, str) else None,
        unembed_hash=known,
        size_bytes=tensors.size_bytes,
    )
    return TrainedLens("tuned", tensors, maps), facts


def _jacobian(file: Path) -> LensFile:
    tensors = _tensors(file)
    maps: dict[int, Map] = {}
    widths = set()
    for name, info in tensors.infos.items():
        match = _JACOBIAN.fullmatch(name)
        if match is None or len(info.shape) != (3 if match[1] is None else 2):
            continue
        width = info.shape[-1]
        if match[1] is not None:
            _check_shape_of(tensors, name, (width, width))
            maps[int(match[1])] = Map(name)
        else:
            _check_shape_of(tensors, name, (info.shape[0], width, width))
            maps |= {layer: Map(name, row=layer) for layer in range(info.shape[0])}
        widths.add(width)
    if not maps:
        raise _invalid(f"{file.name} has no Jacobians: neither J nor parameters.jacobians")
    if len(widths) > 1:
        raise _invalid(f"{file.name} has Jacobians of several widths: {sorted(widths)}")
    facts = LensInspected(
        kind="jacobian",
        layers=sorted(maps),
        width=widths.pop(),
        model_layers=None,
        model_name=None,
        unembed_hash=None,
        size_bytes=tensors.size_bytes,
    )
    return TrainedLens("jacobian", tensors, maps), facts


def unembed_hash(weight: Tensor) -> str:
    """The hash of an output embedding [vocabulary, hidden] by which tuned-lens knows a checkpoint: the SHA-256 of the
    matrix as NumPy prints it in float32 with one decimal. Of long axes NumPy prints the ends only, so that no more of
    the matrix is copied."""
    is_long = weight.numel() > np.get_printoptions()["threshold"]
    printed = weight
    for axis, length in enumerate(weight.shape):
        if is_long and length > 2 * _EDGE:
            ends = [*range(_EDGE + 1), *range(length - _EDGE, length)]
            printed = printed.index_select(axis, torch.tensor(ends, device=weight.device))
    array = printed.detach().float().cpu().numpy()
    with np.printoptions(threshold=0 if is_long else array.size, edgeitems=_EDGE):
        text = np.array_str(array, precision=1)
    return hashlib.sha256(text.encode()).hexdigest()


def _check_shape(facts: LensInspected, model: Checkpoint) -> None:
    """Raises:
    Refusal: LENS_MISMATCH.
    """
    layers = facts.model_layers
    if layers is None:  # a map of each layer but perhaps the last, or of some
        layers = max(model.layers, facts.layers[-1] + 1)
    if (facts.width, layers) == (model.hidden_size, model.layers):
        return
    raise Refusal(
        "LENS_MISMATCH",
        f"the lens is of a model with the width {facts.width} and {layers} layers; the loaded model has "
        f"{model.hidden_size} and {model.layers}",
        width=model.hidden_size,
        layers=model.layers,
    )


def _count(config: dict[str, object], name: str) -> int:
    """Raises:
    Refusal: INVALID_LENS.
    """
    value = config.get(name)
    if type(value) is not int or not 0 < value <= COUNT_MAXIMUM:
        raise _invalid(f"{CONFIG}: {name} is no count")
    return value


def _check_shape_of(tensors: Tensors, name: str, expected: tuple[int, ...]) -> None:
    """Raises:
    Refusal: INVALID_LENS.
    """
    shape = tuple(tensors.infos[name].shape)
    if shape != expected:
        raise _invalid(
            f"{tensors.path.name}: {name} has the shape {list(shape)}, and must have {list(expected)}"
        )


@contextmanager
def _refused() -> Iterator[None]:
    """Refuse a file that cannot be read as INVALID_LENS."""
    try:
        yield
    except Refusal as refusal:
        if refusal.code != "SAE_LOAD_FAILED":
            raise
        raise _invalid(refusal.message) from None


def _invalid(why: str) -> Refusal:
    return Refusal("INVALID_LENS", why)
