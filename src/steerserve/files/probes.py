"""Reads files of linear classifiers into probes. The format is known by the content of a file. No file is executed, and
no tensor library is used.
"""

from __future__ import annotations

import io
import json
import math
import struct
import zipfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from steerserve.errors import Refusal
from steerserve.files import local, vectors
from steerserve.files.vectors import VectorFile, documents, npy, pickles, tensors
from steerserve.files.vectors.stored import Numbers, float32
from steerserve.rules import archive as archive_rules
from steerserve.rules.bounds import ARCHIVE_ENTRIES, VECTOR_FILE_BYTES
from steerserve.rules.saes.sites import RESID_POST
from steerserve.rules.steering.probe import ReadProbe
from steerserve.rules.steering.vector import (
    Convention,
    Direction,
    ReadOptions,
    checked,
    invalid,
    packed,
    place,
)
from steerserve.rules.text import shown

ADAPTER = "adapter_model.safetensors"
"""The file of a LoRA adapter with which a hallucination probe was trained."""

_HEAD, _HEAD_METADATA = "probe_head.bin", "probe_config.json"
_WEIGHTS = "weights."
_NPZ = ("weights", "bias", "scaler_mean", "scaler_scale", "best_layer", "hidden_size")
_LOCATIONS: dict[str, Convention] = {"layer_output": "resid_post", "layer_input": "resid_pre"}
_POSITIVE = "positives_high"


def metadata_name(name: str) -> str | None:
    """The name of the JSON file beside a file of weights that says where its probe reads; None where there is none."""
    if name == _HEAD:
        return _HEAD_METADATA
    stem, _, kind = name.rpartition(".")
    return f"{stem}.json" if kind in ("safetensors", "npz") else None


def adapter_name(name: str) -> str | None:
    """The name of the file of an adapter without which a file of weights is of no use; None where there is none."""
    return ADAPTER if name == _HEAD else None


def load(named: str, check: local.PathCheck) -> tuple[Path, VectorFile]:
    """The file that a client names on this machine, with the one beside it that says where its probe reads.

    Raises:
        Refusal: as `files.vectors.load`; INVALID_VECTOR for a probe beside the adapter that it was trained with.
    """
    path, file = vectors.load(named, check, metadata_name)
    adapter = adapter_name(path.name)
    if adapter is not None:
        with local.reading(path.parent):
            is_adapted = path.with_name(adapter).exists()
        if is_adapted:
            raise invalid(path.name, f"needs {adapter}, which no engine here applies")
    return path, file


@contextmanager
def refused_as_probes() -> Iterator[None]:
    """Refuse what is no probe as INVALID_PROBE, with the words and details of INVALID_VECTOR."""
    try:
        yield
    except Refusal as refusal:
        if refusal.code != "INVALID_VECTOR":
            raise
        raise Refusal("INVALID_PROBE", refusal.message, **refusal.details) from None


@dataclass(slots=True)
class _Found:
    """What a format says, before the options of the client are used: of each layer the key in the file, the number of
    the layer, the site, the weights as float32, and the bias. `is_named` says whether the file says its layers."""

    format: str
    entries: list[tuple[str, int, str, bytes, float]] = field(default_factory=list)
    convention: Convention = "resid_post"
    model_hint: str | None = None
    warnings: list[str] = field(default_factory=list)
    training: dict[str, object] | None = None
    is_named: bool = True


def read(file: VectorFile, options: ReadOptions) -> ReadProbe:
    """The probe in a file.

    Raises:
        Refusal: INVALID_PROBE naming the file, and the tensor or field: a format that is not known, a damaged file,
            weights or a bias that are not finite, a probe that is more than a linear classifier of one layer at a time,
            options that the file contradicts.
    """
    with refused_as_probes():
        if len(file.data) > VECTOR_FILE_BYTES:
            raise invalid(file.name, f"is larger than {VECTOR_FILE_BYTES} bytes")
        return _placed(file.name, _found(file, options), options)


def inline(document: Mapping[str, Any], options: ReadOptions) -> ReadProbe:
    """The probe in the body of a request, whose `weights` each have a bias.

    Raises:
        Refusal: INVALID_PROBE as `read`.
    """
    with refused_as_probes():
        biases = [one.get("bias") for one in document["weights"]]
        return _placed("body", _document("body", document, biases, "inline"), options)


def _found(file: VectorFile, options: ReadOptions) -> _Found:
    name, data = file.name, file.data
    if tensors.is_safetensors(data):
        stored, _ = tensors.read(name, data)
        if "direction" in stored:
            return _openinterp(file, stored, options)
        if "coef" in stored:
            return _regression(name, stored, options)
        if any(key.startswith(_WEIGHTS) for key in stored):
            return _aisteer(file, stored)
        raise invalid(name, "has no tensor `direction`, `coef` or `weights.<layer>`")
    if data.startswith(pickles.ZIP):
        arrays = _npz(name, data)
        if arrays is not None:
            return _h_node(file, arrays)
        return _head(file, pickles.read(name, data), options)
    if data.startswith(pickles.PROTOCOL):
        raise pickles.refuse_other(name)
    if data.lstrip(b"\xef\xbb\xbf \t\r\n").startswith(b"{"):
        said = documents.parse(name, data)
        if "coef" in said:
            lists = {key: _list(name, key, said[key]) for key in _REGRESSION if key in said}
            return _regression(name, lists, options)
        layers = said.get("layers")
        if isinstance(said.get("weights"), list) and isinstance(layers, list):
            biases = [one.get("bias") if isinstance(one, dict) else None for one in layers]
            return _document(name, said, biases, "steerserve")
        raise invalid(name, "has neither `coef` nor the `weights` and `layers` of a probe")
    formats = "safetensors, .npz, probe_head.bin or JSON"
    raise invalid(name, "is empty" if not data else f"is of no known format: {formats}")


# ------------------------------------------------------------- formats


def _aisteer(file: VectorFile, stored: Mapping[str, Numbers]) -> _Found:
    """A Probe of AISteer360: `weights.<layer>` and a JSON file with the bias. Its score is the sum over its layers."""
    name = file.name
    said = _metadata(file)
    if said.get("polarity", _POSITIVE) != _POSITIVE:
        raise invalid(f"{name}'s JSON", f"is not {_POSITIVE}", "polarity")
    convention = _LOCATIONS.get(str(said.get("location")))
    if convention is None:
        raise invalid(f"{name}'s JSON", f"is none of {', '.join(_LOCATIONS)}", "location")
    keys = [key for key in stored if key.startswith(_WEIGHTS)]
    if len(keys) > 1:
        why = f"sums the scores of {len(keys)} layers; a probe here has a score at each layer"
        raise invalid(name, why, keys[1])
    (key,) = keys
    layer = _whole(name, key, key.removeprefix(_WEIGHTS))
    found = _Found("aisteer360", convention=convention, model_hint=_text(said, "model_type"))
    bias = _number(f"{name}'s JSON", "bias", said.get("bias"))
    found.entries.append((key, layer, RESID_POST, float32(name, key, stored[key]), bias))
    if said.get("pooling") == "mean":
        why = "it was trained on means over the tokens of a text; the score of a text is the mean of its tokens' scores"
        found.warnings.append(why)
    return found


def _openinterp(file: VectorFile, stored: Mapping[str, Numbers], options: ReadOptions) -> _Found:
    name = file.name
    said = _metadata(file) if file.metadata is not None else {}
    found = _Found("openinterp", model_hint=_text(said, "model_id"))
    layer = _layer(file, said, "layer", options, found)
    bias = _scalar(name, "bias", stored["bias"]) if "bias" in stored else 0.0
    weights = float32(name, "direction", stored["direction"])
    found.entries.append(("direction", layer, RESID_POST, weights, bias))
    found.warnings.append(
        "the file does not say whether its layer is counted before or after a block; after is taken"
    )
    return found


def _head(file: VectorFile, value: object, options: ReadOptions) -> _Found:
    """A hallucination probe: the state dict of Linear(width, 1), and a JSON file with the layer. It reads the output of
    the block."""
    name = file.name
    if not isinstance(value, dict) or not isinstance(value.get("weight"), Numbers):
        raise invalid(name, "has no tensor `weight` of a linear layer")
    if set(value) - {"weight", "bias"}:
        odd = shown(str(next(iter(set(value) - {"weight", "bias"}))))
        raise invalid(name, "is more than one linear layer", odd)
    said = _metadata(file) if file.metadata is not None else {}
    found = _Found("hallucination_probe")
    layer = _layer(file, said, "layer_idx", options, found)
    weights = float32(name, "weight", _one_row(name, "weight", value["weight"]))
    width = said.get("hidden_size")
    if width is not None and width != len(weights) // 4:
        raise invalid(name, f"has {len(weights) // 4} numbers, and its JSON says {width}", "weight")
    bias = value.get("bias")
    offset = _scalar(name, "bias", bias) if isinstance(bias, Numbers) else 0.0
    found.entries.append(("weight", layer, RESID_POST, weights, offset))
    found.warnings.append(
        "a probe that was trained together with a LoRA adapter is wrong without the adapter"
    )
    return found


def _h_node(file: VectorFile, arrays: Mapping[str, bytes]) -> _Found:
    """An H-Node probe of vLLM-Hook: the margin of a logistic regression on standardised values of the last token.
    Layers count from 1, as the hidden states of Hugging Face do."""
    name = file.name
    missing = [key for key in _NPZ if key not in arrays and key != "hidden_size"]
    if missing:
        raise invalid(name, "is missing", missing[0])
    layer = npy.whole(f"{name}: best_layer", arrays["best_layer"])
    stored = {key: npy.read(f"{name}: {key}", arrays[key]) for key in _NPZ[:4]}
    renamed = dict(zip(("coef", "intercept", "mean", "scale"), stored.values(), strict=True))
    weights, bias = _folded(name, renamed)
    said = _metadata(file) if file.metadata is not None else {}
    found = _Found("h_node", convention="hf_hidden_states", model_hint=_text(said, "model_name"))
    found.entries.append(("weights", layer, RESID_POST, weights, bias))
    found.warnings.append("it was trained on the last token of prompts")
    return found


_REGRESSION = ("coef", "intercept", "mean", "scale")


def _regression(file: str, stored: Mapping[str, Numbers], options: ReadOptions) -> _Found:
    """A logistic regression of scikit-learn, with the mean and the scale of its StandardScaler where it has one."""
    if options.layer is None:
        raise invalid(file, "does not say the layer of its probe; give it as `layer`")
    weights, bias = _folded(file, stored)
    found = _Found("scikit_learn", is_named=False)
    found.entries.append(("coef", options.layer, RESID_POST, weights, bias))
    return found


def _folded(file: str, stored: Mapping[str, Numbers]) -> tuple[bytes, float]:
    """The weights and the bias of a regression on standardised values x' = (x - mean) / scale, for the values x."""
    if "intercept" not in stored:
        raise invalid(file, "is missing", "intercept")
    weights = _values(file, "coef", stored["coef"])
    bias = _scalar(file, "intercept", stored["intercept"])
    means, scales = (
        _values(file, key, stored[key]) if key in stored else None for key in ("mean", "scale")
    )
    for key, one in (("mean", means), ("scale", scales)):
        if one is not None and len(one) != len(weights):
            raise invalid(file, f"has {len(one)} numbers, and coef has {len(weights)}", key)
    if scales is not None:
        # a scale of 0 is that of a value without spread, which StandardScaler divides by 1
        weights = [w / (scale or 1.0) for w, scale in zip(weights, scales, strict=True)]
    if means is not None:
        try:
            bias -= math.fsum(w * mean for w, mean in zip(weights, means, strict=True))
        except (OverflowError, ValueError):
            raise invalid(file, "gives a bias that is not finite", "mean") from None
    try:
        return packed(weights), bias
    except OverflowError:
        raise invalid(file, "has a number that float32 does not have", "coef") from None


def _document(
    file: str, said: Mapping[str, object], biases: Sequence[object], format: str
) -> _Found:
    """A probe as `GET /api/probes/{id}` answers it."""
    weights = documents.of_export(file, {"directions": said["weights"]})
    if len(biases) != len(weights.found):
        why = f"has {len(biases)} entries, and weights has {len(weights.found)}"
        raise invalid(file, why, "layers")
    found = _Found(format, model_hint=_text(said, "model_hint"))
    for number, (_, layer, site, numbers) in enumerate(weights.found):
        key = f"weights[{number}]"
        bias = _number(file, f"{key}.bias", biases[number])
        found.entries.append((key, layer, site, float32(file, key, numbers), bias))
    training = said.get("training")
    found.training = training if isinstance(training, dict) else None
    return found


# ------------------------------------------------------------- layers


def _placed(file: str, found: _Found, options: ReadOptions) -> ReadProbe:
    if options.layer is not None and found.is_named:
        raise invalid(file, "says the layer of its probe, so that `layer` must be left out")
    convention = options.layer_convention or found.convention
    biases: dict[tuple[int, str], float] = {}
    directions = []
    for key, index, site, data, bias in found.entries:
        where = place(index, site, convention, options.layer_offset)
        if where is None:
            raise invalid(
                file,
                f"would be before the first layer, or after any, with the layer_convention {convention} and the "
                f"layer_offset {options.layer_offset}",
                key,
            )
        if not math.isfinite(bias):
            raise invalid(file, "has a bias that is not finite", key)
        biases[where] = bias
        directions.append((key, Direction(*where, data)))
    ordered = checked(file, directions)
    return ReadProbe(
        format=found.format,
        directions=ordered,
        biases=tuple(biases[one.layer, one.site] for one in ordered),
        keys=tuple(key for key, *_ in found.entries),
        layer_convention=convention,
        layer_offset=options.layer_offset,
        model_hint=found.model_hint,
        warnings=tuple(found.warnings),
        training=found.training,
    )


def _layer(
    file: VectorFile, said: Mapping[str, object], key: str, options: ReadOptions, found: _Found
) -> int:
    """The layer that the metadata say, or the client where they are not there."""
    if key in said:
        layer = said[key]
        if type(layer) is not int or layer < 0:
            raise invalid(f"{file.name}'s JSON", "is no number of a layer", key)
        return layer
    if options.layer is None:
        beside = metadata_name(file.name) or "the JSON file"
        why = f"does not say the layer of its probe; {beside} does, as `metadata`, or give it as `layer`"
        raise invalid(file.name, why)
    found.is_named = False
    return options.layer


# ------------------------------------------------------------- values


def _metadata(file: VectorFile) -> dict[str, object]:
    if file.metadata is None:
        beside = metadata_name(file.name) or "its JSON file"
        raise invalid(file.name, f"needs {beside} beside it; a form has it as `metadata`")
    return documents.parse(f"{file.name}'s JSON", file.metadata)


def _npz(file: str, data: bytes) -> dict[str, bytes] | None:
    """The arrays of an .npz file that a probe has; None for another archive.

    Raises:
        Refusal: INVALID_VECTOR for a damaged archive, and for one that is larger than a file of vectors may be.
    """
    if archive_rules.has_more_entries(data, ARCHIVE_ENTRIES):
        raise invalid(file, f"has more than {ARCHIVE_ENTRIES} entries")
    try:
        with zipfile.ZipFile(io.BytesIO(data)) as archive:
            names = archive.namelist()
            if not all(name.endswith(".npy") for name in names):
                return None
            wanted = [name for name in (f"{key}.npy" for key in _NPZ) if name in names]
            if sum(archive.getinfo(name).file_size for name in wanted) > VECTOR_FILE_BYTES:
                raise invalid(file, f"has more than {VECTOR_FILE_BYTES} bytes of arrays")
            return {name.removesuffix(".npy"): archive.read(name) for name in wanted}
    except (zipfile.BadZipFile, OSError, EOFError, NotImplementedError, RuntimeError, ValueError):
        raise invalid(file, "is a damaged archive") from None


def _one_row(file: str, key: str, numbers: Numbers) -> Numbers:
    """Raises:
    Refusal: INVALID_VECTOR where the classifier has several outputs.
    """
    shape = numbers.direction_shape
    if len(shape) != 1:
        raise invalid(file, f"has the shape {list(numbers.shape)}; a probe has one output", key)
    return numbers


def _values(file: str, key: str, numbers: Numbers) -> list[float]:
    data = float32(file, key, _one_row(file, key, numbers))
    if numbers.dtype == "float64":
        return list(struct.unpack(f"<{len(numbers.data) // 8}d", numbers.data))
    return list(struct.unpack(f"<{len(data) // 4}f", data))


def _scalar(file: str, key: str, numbers: Numbers) -> float:
    values = _values(file, key, Numbers(numbers.dtype, numbers.shape or (1,), numbers.data))
    if len(values) != 1:
        raise invalid(file, f"has {len(values)} numbers; a probe has one output", key)
    return values[0]


def _list(file: str, key: str, value: object) -> Numbers:
    """A number, a list of numbers, or a list with one such list, as `tolist` of scikit-learn's arrays gives them."""
    if isinstance(value, list) and len(value) == 1 and isinstance(value[0], list):
        value = value[0]
    if not isinstance(value, list):
        value = [value]
    numbers = [_number(file, key, one) for one in value]
    return Numbers("float64", (len(numbers),), struct.pack(f"<{len(numbers)}d", *numbers))


def _number(file: str, key: str, value: object) -> float:
    if type(value) not in (int, float):
        raise invalid(file, f"is no number: {shown(json.dumps(value, default=str))}", key)
    try:
        return float(value)  # type: ignore[arg-type]
    except OverflowError:
        raise invalid(file, "is a number that is too large", key) from None


def _whole(file: str, key: str, text: str) -> int:
    if not (text.isascii() and text.isdigit() and len(text) <= 4):
        raise invalid(file, "does not name a layer", key)
    return int(text)


def _text(said: Mapping[str, object], key: str) -> str | None:
    value = said.get(key)
    return value if isinstance(value, str) and value else None
