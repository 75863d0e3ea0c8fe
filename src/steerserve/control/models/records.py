"""Reads the files of a model, and gives the facts in them as the values of the model's record."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from steerserve.control.residency import fitting
from steerserve.errors import Refusal
from steerserve.files import gguf as gguf_files
from steerserve.files import local, weights
from steerserve.rules.inference.names import GGUF
from steerserve.rules.models import gguf, naming
from steerserve.rules.units import MIB


def local_values(
    named: str, label: str | None, quantization: str, check: local.PathCheck
) -> dict[str, object]:
    """The record's values for the model at a path of this machine: a `.gguf` file, a folder with GGUF models, or a
    checkpoint folder. `check` refuses a path that may not be read.

    Raises:
        Refusal: INVALID_LOCAL_PATH.
    """
    check(named)
    if named.lower().endswith(".gguf"):
        return _named_gguf_values(local.resolve_file(named), label, check)
    path = local.resolve(named)
    if label is not None or not (path / "config.json").exists():
        with suppress(gguf_files.GGUFError):
            if gguf_files.listing(path).variants:
                return _named_gguf_values(path, label, check)
    return {"name": path.name[: naming.NAME_MAXIMUM], **checkpoint_values(path, quantization)}


def checkpoint_values(path: Path, quantization: str) -> dict[str, object]:
    """The record's values for a checkpoint folder.

    Raises:
        Refusal: INVALID_LOCAL_PATH.
    """
    folder = local.read_model(path)
    return {
        "local_path": str(path),
        "architecture": folder.architecture,
        "num_parameters": folder.parameters,
        "dtype": folder.dtype,
        "disk_size_mb": -(-folder.size_bytes // MIB),
        "estimated_memory_mb": fitting.estimated_memory_mb(
            weights.read_weights(path), quantization
        ),
    }


def gguf_values(files: Sequence[Path], label: str | None) -> dict[str, object]:
    """The record's values for the files of a GGUF model. Without a `label`, the header tells the quantization.

    Raises:
        Refusal: INVALID_LOCAL_PATH.
    """
    try:
        header = gguf_files.read_header(files)
    except gguf_files.GGUFError as error:
        raise Refusal("INVALID_LOCAL_PATH", str(error)) from error
    label, size_mb = label or header.label, -(-header.size_bytes // MIB)
    return {
        "local_path": str(files[0]),
        "engine": GGUF,
        "gguf_label": label,
        "quantization": gguf.precision_of(label),
        "architecture": header.architecture,
        "num_parameters": header.parameters,
        "disk_size_mb": size_mb,
        "estimated_memory_mb": size_mb,
    }


def _named_gguf_values(path: Path, label: str | None, check: local.PathCheck) -> dict[str, object]:
    """The record's values for a GGUF model of this machine, which is named by its file or folder and its label.

    Raises:
        Refusal: INVALID_LOCAL_PATH.
    """
    try:
        files = gguf_files.entry(path, label)
    except gguf_files.GGUFError as error:
        raise Refusal("INVALID_LOCAL_PATH", str(error), local_path=str(path)[:500]) from error
    local.check_written(files[0])
    for file in files:
        check(str(file))
    named = gguf.classify(files[0].name)
    values = gguf_values(files, named.label)
    tag = f":{values['gguf_label']}"
    return values | {"name": named.base[: naming.NAME_MAXIMUM - len(tag)] + tag}
