"""The names of an SAE's tensors in all formats, and the sizes of an SAE from names and shapes before it is downloaded.

The names are those of SAELens, Gemma Scope, dictionary_learning, sparsify and OpenMOSS. The lengths of the biases
decide how a matrix is stored, not its name: some formats store `W_enc` transposed.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from steerserve.errors import Refusal
from steerserve.rules.models.precision import StoredTensor

ENCODERS = ("encoder", "encoder.0", "encoder_linear", "enc", "encoder.linear")
DECODERS = ("decoder", "decoder.0", "decoder_linear", "dec", "decoder.linear")
NAMES = {
    "W_enc": ("W_enc", "w_enc", "W_E", *(f"{e}.weight" for e in ENCODERS)),
    "b_enc": ("b_enc", "b_E", *(f"{e}.bias" for e in ENCODERS), "latent_bias"),
    "W_dec": ("W_dec", "w_dec", "W_D", *(f"{d}.weight" for d in DECODERS)),
    "b_dec": (
        "b_dec",
        "b_D",
        *(f"{d}.bias" for d in DECODERS),
        "bias",
        "decoder_bias",
        "pre_bias",
    ),
    "threshold": ("threshold", "thresholds"),
    "log_threshold": ("log_threshold", "log_jumprelu_threshold"),
    "b_gate": ("b_gate", "gate_bias"),
    "b_mag": ("b_mag", "mag_bias"),
    "r_mag": ("r_mag",),
}
"""Each part of an SAE -> the names that its tensor may have."""

WRAPPERS = frozenset({"module", "_orig_mod"})
"""Parts of a tensor's name that come from PyTorch's wrappers: DataParallel adds `module`, torch.compile `_orig_mod`."""

_WIDE = tuple(
    name for part in ("b_enc", "b_gate", "threshold", "log_threshold") for name in NAMES[part]
)
"""The names of vectors of length d_sae."""

_LINEAR = tuple(f"{d}.weight" for d in DECODERS)
"""Decoders that are stored [d_in, d_sae], as linear modules store them. Other decoders are stored [d_sae, d_in]."""

_SKIPS = ("W_skip", "affine_skip_connection")
_DTYPES = {"F64": "float64", "F32": "float32", "F16": "float16", "BF16": "bfloat16"}
_SHOWN = 20


@dataclass(frozen=True, slots=True)
class Width:
    """The number of inputs and the number of features; `dtype` is the dtype of the decoder."""

    d_in: int
    d_sae: int
    dtype: str


def width_of(tensors: Sequence[StoredTensor]) -> Width:
    """The width of an SAE with these tensors.

    Raises:
        Refusal: SAE_INCOMPATIBLE, with the tensors, when these are not an autoencoder of one site.
    """
    by_name = _by_name(tensors)
    encoder, decoder = _first(by_name, NAMES["W_enc"]), _first(by_name, NAMES["W_dec"])
    if skip := _first(by_name, _SKIPS):
        raise _refused(f"the SAE has {skip.name}: a transcoder with a skip connection", tensors)
    if encoder is None or decoder is None:
        raise _refused("the SAE has no encoder and decoder under a known name", tensors)
    if len(encoder.shape) != 2 or len(decoder.shape) != 2:
        raise _refused("the matrices of the SAE do not have two axes", tensors)
    if sorted(encoder.shape) != sorted(decoder.shape):
        raise _refused(
            "the encoder and the decoder of the SAE do not fit each other: a transcoder", tensors
        )
    d_sae = _orient(by_name, decoder)
    d_in = decoder.shape[0] if decoder.shape[1] == d_sae else decoder.shape[1]
    if d_sae < 1 or d_in < 1:
        raise _refused("the matrices of the SAE are empty", tensors)
    return Width(d_in, d_sae, _DTYPES.get(decoder.dtype, decoder.dtype.lower()))


def plain_names(stored: Iterable[str]) -> dict[str, str]:
    """The name of each tensor without PyTorch's wrappers -> its name as stored. If two tensors would get the same name,
    all of them keep their stored names."""
    names = list(stored)
    plain = {_unwrapped(name): name for name in names}
    return plain if len(plain) == len(names) else {name: name for name in names}


def _unwrapped(name: str) -> str:
    return ".".join(part for part in name.split(".") if part not in WRAPPERS)


def _by_name(tensors: Sequence[StoredTensor]) -> dict[str, StoredTensor]:
    """The tensors by their plain names, without the prefix that the decoder's name has (`sae.` in `sae.W_dec`)."""
    stored = {tensor.name: tensor for tensor in tensors}
    by_name = {plain: stored[name] for plain, name in plain_names(stored).items()}
    for plain in by_name:
        for name in NAMES["W_dec"]:
            if plain.endswith(f".{name}"):
                prefix = plain.removesuffix(name)
                return {other.removeprefix(prefix): t for other, t in by_name.items()}
    return by_name


def _orient(by_name: dict[str, StoredTensor], decoder: StoredTensor) -> int:
    """The number of features, an axis of the decoder. The biases decide which axis; without biases the name decides."""
    wide, narrow = _length(by_name, _WIDE), _length(by_name, NAMES["b_dec"])
    for length, other in ((wide, False), (narrow, True)):
        if length is not None and length in decoder.shape:
            axis = decoder.shape.index(length)
            return decoder.shape[1 - axis] if other else length
    return decoder.shape[1] if decoder.name in _LINEAR else decoder.shape[0]


def _first(by_name: dict[str, StoredTensor], names: Sequence[str]) -> StoredTensor | None:
    return next((by_name[name] for name in names if name in by_name), None)


def _length(by_name: dict[str, StoredTensor], names: Sequence[str]) -> int | None:
    """The length of the first of these tensors that is a vector of more than one element."""
    vectors = (by_name[name].shape for name in names if name in by_name)
    return next((shape[0] for shape in vectors if len(shape) == 1 and shape[0] > 1), None)


def _refused(why: str, tensors: Sequence[StoredTensor]) -> Refusal:
    shown = [f"{t.name[:80]} {list(t.shape[:4])}" for t in tensors[:_SHOWN]]
    return Refusal(
        "SAE_INCOMPATIBLE", f"the file is not an SAE that can be attached: {why}", found=shown
    )
