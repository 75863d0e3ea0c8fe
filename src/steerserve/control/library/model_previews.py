"""What a repository of the hub offers, before anything is downloaded."""

from __future__ import annotations

from typing import Any

from steerserve.control.library.model_plan import gguf_offers
from steerserve.control.residency import fitting
from steerserve.hub.client import Repository
from steerserve.rules import gguf, repository
from steerserve.rules.naming import parameters_label
from steerserve.rules.units import MIB

PRECISIONS = ("FP16", "Q8", "Q4", "Q2")


def of(found: Repository) -> dict[str, Any]:
    """The preview of a repository; what the hub does not tell is None."""
    quants = gguf_offers(found.files)
    has_checkpoint = repository.has_weights(found.files)
    return {
        "name": found.repo_id.rpartition("/")[2],
        "repo_id": found.repo_id,
        "revision": found.sha,
        "params": parameters_label(found.parameters),
        "num_parameters": found.parameters,
        "architecture": next(iter(found.architectures), None),
        "architectures": list(found.architectures) or None,
        "model_type": found.model_type,
        "requires_trust_remote_code": found.requires_trust_remote_code,
        "is_gated": found.is_gated,
        "estimated_sizes": _sizes(found) if has_checkpoint else None,
        "downloads": found.downloads,
        "likes": found.likes,
        "tags": list(found.tags),
        "pipeline_tag": found.pipeline_tag,
        "license": found.license,
        "language": found.language,
        "gguf_quants": [_variant(variant) for variant in quants.variants] or None,
        "gguf_companions": [_file(file) for file in quants.companions] or None,
        "gguf_architecture": found.gguf_architecture,
        "gguf_context_length": found.gguf_context_length,
        "gguf_total_params": found.gguf_parameters,
    }


def _sizes(found: Repository) -> dict[str, dict[str, int]]:
    """By precision: what the download takes on the disk, which is always the checkpoint as published, and what the
    loaded model takes in memory."""
    files = repository.checkpoint_files(
        found.files, trust_remote_code=found.requires_trust_remote_code
    )
    weights = sum(f.size or 0 for f in files if f.path.endswith((".safetensors", ".bin")))
    # a hub that does not count them: most checkpoints hold two bytes a parameter
    parameters = found.parameters or weights // 2
    disk_mb = -(-sum(file.size or 0 for file in files) // MIB)
    return {
        precision: {
            "disk_mb": disk_mb,
            "memory_mb": fitting.estimate(parameters, precision),
        }
        for precision in PRECISIONS
    }


def _variant(variant: gguf.Variant) -> dict[str, Any]:
    return {
        "label": variant.name,
        "files": [_file(file) for file in variant.files],
        "total_size_bytes": variant.total_bytes,
        "is_split": variant.is_split,
        "quant_parsed": variant.quant_parsed,
    }


def _file(file: gguf.GgufFile) -> dict[str, Any]:
    return {"path": file.path, "size_bytes": file.size_bytes}
