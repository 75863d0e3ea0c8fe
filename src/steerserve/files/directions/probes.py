"""The formats of files of linear classifiers. The format is known by the content of a file."""

from __future__ import annotations

import io
import json
import math
import struct
import zipfile
from collections.abc import Mapping, Sequence
from typing import Any

from steerserve.files.directions import documents, npy, pickles, tensors
from steerserve.files.directions.reader import Formats
from steerserve.files.directions.stored import DirectionFile, Found, Numbers, float32
from steerserve.rules import archive as archive_rules
from steerserve.rules.bounds import ARCHIVE_ENTRIES, VECTOR_FILE_BYTES
from steerserve.rules.saes.sites import RESID_POST
from steerserve.rules.steering.probe import ReadProbe
from steerserve.rules.steering.vector import Convention, ReadOptions, invalid, packed
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


def _find(file: DirectionFile, options: ReadOptions) -> Found:
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
        return _head(file, options)
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


def _aisteer(file: DirectionFile, stored: Mapping[str, Numbers]) -> Found:
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
    found = Found(
        "aisteer360", convention=convention, model_hint=documents.text(said, "model_type")
    )
    bias = _number(f"{name}'s JSON", "bias", said.get("bias"))
    _add(found, key, layer, stored[key], bias)
    if said.get("pooling") == "mean":
        why = "it was trained on means over the tokens of a text; the score of a text is the mean of its tokens' scores"
        found.warnings.append(why)
    return found


def _openinterp(file: DirectionFile, stored: Mapping[str, Numbers], options: ReadOptions) -> Found:
    name = file.name
    said = _metadata(file) if file.metadata is not None else {}
    found = Found("openinterp", model_hint=documents.text(said, "model_id"))
    layer = _layer(file, said, "layer", options, found)
    bias = _scalar(name, "bias", stored["bias"]) if "bias" in stored else 0.0
    _add(found, "direction", layer, stored["direction"], bias)
    found.warnings.append(
        "the file does not say whether its layer is counted before or after a block; after is taken"
    )
    return found


def _head(file: DirectionFile, options: ReadOptions) -> Found:
    """A hallucination probe: the state dict of Linear(width, 1), and a JSON file with the layer. It reads the output of
    the block."""
    name, value = file.name, pickles.read(file.name, file.data)
    tensors = {} if isinstance(value, Numbers) else dict(value)
    if (stored := tensors.get("weight")) is None:
        raise invalid(name, "has no tensor `weight` of a linear layer")
    for key in tensors.keys() - {"weight", "bias"}:
        raise invalid(name, "is more than one linear layer", key)
    said = _metadata(file) if file.metadata is not None else {}
    found = Found("hallucination_probe")
    layer = _layer(file, said, "layer_idx", options, found)
    weights = _one_row(name, "weight", stored)
    (width,), said_width = weights.direction_shape, said.get("hidden_size")
    if said_width not in (None, width):
        raise invalid(name, f"has {width} numbers, and its JSON says {said_width}", "weight")
    bias = tensors.get("bias")
    offset = 0.0 if bias is None else _scalar(name, "bias", bias)
    _add(found, "weight", layer, weights, offset)
    found.warnings.append(
        "a probe that was trained together with a LoRA adapter is wrong without the adapter"
    )
    return found


def _h_node(file: DirectionFile, arrays: Mapping[str, bytes]) -> Found:
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
    found = Found(
        "h_node", convention="hf_hidden_states", model_hint=documents.text(said, "model_name")
    )
    _add(found, "weights", layer, weights, bias)
    found.warnings.append("it was trained on the last token of prompts")
    return found


_REGRESSION = ("coef", "intercept", "mean", "scale")


def _regression(file: str, stored: Mapping[str, Numbers], options: ReadOptions) -> Found:
    """A logistic regression of scikit-learn, with the mean and the scale of its StandardScaler where it has one."""
    if options.layer is None:
        raise invalid(file, "does not say the layer of its probe; give it as `layer`")
    weights, bias = _folded(file, stored)
    found = Found("scikit_learn", is_named=False)
    _add(found, "coef", options.layer, weights, bias)
    return found


def _folded(file: str, stored: Mapping[str, Numbers]) -> tuple[Numbers, float]:
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
        return Numbers("float32", (len(weights),), packed(weights)), bias
    except OverflowError:
        raise invalid(file, "has a number that float32 does not have", "coef") from None


def _document(
    file: str, said: Mapping[str, object], biases: Sequence[object], format: str
) -> Found:
    """A probe as `GET /api/probes/{id}` answers it."""
    kept = {key: said.get(key) for key in ("model_hint", "training")}
    found = documents.of_export(file, kept | {"directions": said["weights"]})
    if len(biases) != len(found.entries):
        why = f"has {len(biases)} entries, and weights has {len(found.entries)}"
        raise invalid(file, why, "layers")
    keys = [f"weights[{number}]" for number in range(len(biases))]
    found.format = format
    found.entries = [(key, *one[1:]) for key, one in zip(keys, found.entries, strict=True)]
    found.biases = [
        _number(file, f"{key}.bias", bias) for key, bias in zip(keys, biases, strict=True)
    ]
    return found


def _find_inline(document: Mapping[str, Any]) -> Found:
    """The probe in a body whose `weights` each have a bias."""
    biases = [one.get("bias") for one in document["weights"]]
    return _document("body", document, biases, "inline")


def _add(found: Found, key: str, layer: int, weights: Numbers, bias: float) -> None:
    found.entries.append((key, layer, RESID_POST, weights))
    found.biases.append(bias)


# ------------------------------------------------------------- layers


def _layer(
    file: DirectionFile, said: Mapping[str, object], key: str, options: ReadOptions, found: Found
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


def _metadata(file: DirectionFile) -> dict[str, object]:
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


PROBES: Formats[ReadProbe] = Formats(
    ReadProbe,
    "probe",
    "the layer of its probe",
    metadata_name,
    {_HEAD: ADAPTER},
    _find,
    _find_inline,
    lambda *_: None,
    lambda _, biases: {"biases": biases},
)
