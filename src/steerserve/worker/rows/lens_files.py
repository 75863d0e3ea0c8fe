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
from pathlib import Path
from typing import Literal

import numpy as np
import torch
from torch import Tensor

from steerserve.errors import Refusal
from steerserve.rules.text import shown
from steerserve.worker.model.checkpoint import Checkpoint
from steerserve.worker.model.unembedding import Unembedding
from steerserve.worker.sae.files import open_tensors, read_json
from steerserve.worker.sae.stored import Tensors

LensKind = Literal["tuned", "jacobian"]

CONFIG, PARAMETERS = "config.json", "params.pt"
"""The files of a tuned lens."""

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


class Map:
    """Where the matrix of a layer, and perhaps its bias, are: the names of tensors, and the row of a tensor that has
    all layers."""

    def __init__(self, weight: str, bias: str | None = None, row: int | None = None) -> None:
        self._weight = weight
        self._bias = bias
        self._row = row

    def read(self, tensors: Tensors, device: torch.device) -> tuple[Tensor, Tensor | None]:
        """The matrix [hidden, hidden] and the bias [hidden], float32."""
        weight = tensors.read(self._weight)
        weight = weight if self._row is None else weight[self._row]
        bias = None if self._bias is None else tensors.read(self._bias).to(device, torch.float32)
        return weight.to(device, torch.float32), bias


def open_lens(path: str, model: Checkpoint, unembedding: Unembedding) -> TrainedLens:
    """The lens in a folder of tuned-lens, or in a file of jlens. Nothing is executed, and no matrix is read yet.

    Raises:
        Refusal: INVALID_LENS for a file that cannot be read as a lens; LENS_MISMATCH where the lens was trained for
            another checkpoint, as far as it says for which.
    """
    place = Path(path)
    with _refused():
        if place.is_dir():
            return _tuned(place, model, unembedding)
        return _jacobian(place, model)


def _tuned(folder: Path, model: Checkpoint, unembedding: Unembedding) -> TrainedLens:
    config = read_json(folder / CONFIG)
    if config.get("lens_type", _TUNED) != _TUNED:
        raise _invalid(f"{CONFIG}: the lens_type is not {_TUNED}")
    _check_shape(config.get("d_model"), config.get("num_hidden_layers"), model)
    known = config.get("unembed_hash")
    if not isinstance(known, str):
        raise _invalid(
            f"{CONFIG} has no unembed_hash, which says for which checkpoint it was trained"
        )
    if known != unembed_hash(unembedding.weight()):
        name = shown(str(config.get("base_model_name_or_path")))
        why = f"the lens was trained for another output embedding, that of {name}"
        raise Refusal("LENS_MISMATCH", why, base_model=name)
    tensors = open_tensors(folder / PARAMETERS)
    maps = {}
    # the map i is of the stream before block i, which is the stream after block i - 1; before block 0 are no layers
    for block in range(1, model.layers):
        weight, bias = f"{block}.weight", f"{block}.bias"
        if weight not in tensors.infos:
            raise _invalid(f"{PARAMETERS} has no tensor {weight}")
        maps[block - 1] = Map(weight, bias if bias in tensors.infos else None)
        _check_square(tensors, weight, model.hidden_size, rows=None)
    return TrainedLens("tuned", tensors, maps)


def _jacobian(file: Path, model: Checkpoint) -> TrainedLens:
    tensors = open_tensors(file)
    maps = {}
    for name, info in tensors.infos.items():
        match = _JACOBIAN.fullmatch(name)
        if match is None:
            continue
        if match[1] is not None:
            _check_square(tensors, name, model.hidden_size, rows=None)
            maps[int(match[1])] = Map(name)
        elif len(info.shape) == 3:
            _check_square(tensors, name, model.hidden_size, rows=info.shape[0])
            maps |= {layer: Map(name, row=layer) for layer in range(info.shape[0])}
    if not maps:
        raise _invalid(f"{file.name} has no Jacobians: neither J nor parameters.jacobians")
    if max(maps) >= model.layers:
        _check_shape(model.hidden_size, max(maps) + 1, model)
    return TrainedLens("jacobian", tensors, maps)


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


def _check_shape(width: object, layers: object, model: Checkpoint) -> None:
    """Raises:
    Refusal: LENS_MISMATCH.
    """
    if (width, layers) == (model.hidden_size, model.layers):
        return
    raise Refusal(
        "LENS_MISMATCH",
        f"the lens is of a model with the width {shown(str(width))} and {shown(str(layers))} layers; the loaded model "
        f"has {model.hidden_size} and {model.layers}",
        width=model.hidden_size,
        layers=model.layers,
    )


def _check_square(tensors: Tensors, name: str, width: int, rows: int | None) -> None:
    """Raises:
    Refusal: LENS_MISMATCH.
    """
    shape = tuple(tensors.infos[name].shape)
    expected = (width, width) if rows is None else (rows, width, width)
    if shape != expected:
        why = f"{name} has the shape {list(shape)}; the loaded model needs {list(expected)}"
        raise Refusal("LENS_MISMATCH", why, width=width)


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
