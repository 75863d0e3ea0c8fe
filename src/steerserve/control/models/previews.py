"""Previews the models that a repository of the hub offers, before anything is downloaded."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field

from steerserve.control.models.downloads import ModelDownloads
from steerserve.control.models.plan import gguf_offers
from steerserve.control.residency import fitting
from steerserve.errors import Refusal
from steerserve.files.local import STORED_BITS
from steerserve.files.weights import weights_of
from steerserve.hub.described import Repository
from steerserve.nouns.models.form import EstimatedSize
from steerserve.rules.models import precision, repository
from steerserve.rules.models.gguf import GgufListing
from steerserve.rules.models.precision import StoredTensor
from steerserve.rules.models.repository import RepoFile
from steerserve.rules.units import MIB

PRECISIONS = ("FP16", "Q8", "Q4", "Q2")

HEADERS_READ = 8
"""Most files whose headers are read for one preview. Weights in more files are estimated from the hub's counts."""


@dataclass(frozen=True, slots=True)
class ModelQuery:
    """A repository to preview. The token is used for this preview and not kept."""

    repo_id: str
    revision: str | None = None
    token: str | None = field(default=None, repr=False)


@dataclass(frozen=True, slots=True)
class ModelPreview:
    """`sizes` has the sizes of the checkpoint by precision; None for a repository without a checkpoint. `offers` has
    the GGUF models."""

    repository: Repository
    sizes: Mapping[str, EstimatedSize] | None
    offers: GgufListing


async def preview_model(downloads: ModelDownloads, query: ModelQuery) -> ModelPreview:
    """The preview of a repository. Facts that the hub does not give are None.

    Raises:
        Refusal: what `ModelDownloads.describe` raises.
    """
    listed = await downloads.describe(query.repo_id, query.revision, query.token)
    sizes = None
    if repository.has_weights(listed.files):
        sizes = await _sizes(downloads, listed, query.token)
    # names of thousands of files are compared beside the event loop
    offers = await asyncio.to_thread(gguf_offers, listed.files)
    return ModelPreview(listed, sizes, offers)


async def _sizes(
    downloads: ModelDownloads, listed: Repository, token: str | None
) -> dict[str, EstimatedSize]:
    """The sizes by precision. The download is the published checkpoint at every precision, so `disk_mb` is always the
    same."""
    files = repository.checkpoint_files(
        listed.files, trust_remote_code=listed.requires_trust_remote_code
    )
    weights = [file for file in files if file.path.endswith((".safetensors", ".bin"))]
    weight_bytes = sum(file.size or 0 for file in weights)
    config = listed.config or {}
    if precision.quantization_config(config):
        # the size of a quantized checkpoint comes from the weights it stores, as in the record after the download
        stored = await _headers(downloads, listed, weights, token)
        stored = stored or _counted(listed.parameters_by_dtype) or [_bytes(weight_bytes)]
        model = weights_of(config, stored)
        memory = {asked: fitting.estimated_memory_mb(model, asked) for asked in PRECISIONS}
    else:
        # if the hub gives no parameter count, two bytes per parameter are assumed, as in most checkpoints
        parameters = listed.parameters or weight_bytes // 2
        memory = {asked: fitting.estimate(parameters, asked) for asked in PRECISIONS}
    disk_mb = -(-sum(file.size or 0 for file in files) // MIB)
    return {asked: EstimatedSize(disk_mb, memory_mb) for asked, memory_mb in memory.items()}


async def _headers(
    downloads: ModelDownloads, listed: Repository, weights: Sequence[RepoFile], token: str | None
) -> list[StoredTensor]:
    """The tensors that the headers of all weight files list. Empty if there are too many files, or if one cannot be
    read."""
    if len(weights) > HEADERS_READ or not all(f.path.endswith(".safetensors") for f in weights):
        return []
    with suppress(Refusal):
        headers = await asyncio.gather(*(downloads.header(listed, file, token) for file in weights))
        return [tensor for header in headers for tensor in header]
    return []


def _counted(parameters_by_dtype: Mapping[str, int]) -> list[StoredTensor]:
    """One tensor for each dtype, with as many elements as the hub counts. Its name marks packed or block-quantized
    weights."""
    names = {"I32": "counted.weight_packed", "U8": "counted_blocks"}
    return [
        StoredTensor(
            names.get(dtype, "counted.weight"), dtype, (count,), count * STORED_BITS[dtype] // 8
        )
        for dtype, count in parameters_by_dtype.items()
        if dtype in STORED_BITS
    ]


def _bytes(count: int) -> StoredTensor:
    """One tensor that stands for weights of which only the size is known."""
    return StoredTensor("counted", "U8", (count,), count)
