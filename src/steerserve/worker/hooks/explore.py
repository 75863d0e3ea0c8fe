"""Geometry of an SAE: norms and thresholds of single features, and the features with the closest decoder directions."""

from __future__ import annotations

from collections.abc import Generator

import torch
from torch import Tensor

from steerserve.errors import Refusal
from steerserve.messages import Explore, Explored, FeatureFacts, SaeSource
from steerserve.rules.steering.live import check_index
from steerserve.worker.model.budget import SaeRoom
from steerserve.worker.sae import formats
from steerserve.worker.sae.canonical import Sae


def load(source: SaeSource, features: list[int], room: SaeRoom) -> Sae:
    """The SAE at `source`, on the host. The indices of the features are checked before its tensors are read.

    Raises:
        Refusal: INVALID_FEATURE_INDEX, SAE_INCOMPATIBLE, SAE_LOAD_FAILED, INSUFFICIENT_MEMORY.
    """
    claims = formats.inspect(source)
    if claims.reason is not None:
        raise Refusal("SAE_INCOMPATIBLE", claims.reason, format=claims.format)
    for index in features:
        check_index(index, claims.d_sae)
    room.check_read(claims.size_bytes)
    return formats.load(source)


def explore(command: Explore, sae: Sae) -> Generator[None, None, Explored]:
    """What is asked about an SAE, in slices.

    Raises:
        Refusal: INVALID_FEATURE_INDEX; VECTOR_MISMATCH for a direction of another width than the SAE reads.
    """
    for index in command.features:
        check_index(index, sae.d_sae)
    nearest: list[tuple[int, float]] = []
    if command.nearest and command.direction is not None:
        direction = torch.frombuffer(bytearray(command.direction), dtype=torch.float32)
        if len(direction) != sae.d_in:
            why = f"the direction has {len(direction)} numbers, and the SAE reads {sae.d_in}"
            raise Refusal("VECTOR_MISMATCH", why, width=len(direction), d_in=sae.d_in)
        nearest = _pairs(*(yield from sae.nearest_to(direction, command.nearest)))
    elif command.nearest and command.features:
        nearest = _pairs(*(yield from sae.nearest(command.features[0], command.nearest)))
    return Explored(command.id, [_facts(sae, index) for index in command.features], nearest)


def _pairs(indices: Tensor, cosines: Tensor) -> list[tuple[int, float]]:
    return list(zip(indices.tolist(), cosines.tolist(), strict=True))


def _facts(sae: Sae, index: int) -> FeatureFacts:
    """The facts of one feature, with norms in the unit of the residual stream. The bias of a gated feature is the bias
    of its gate."""
    bias = sae.b_enc if sae.gate is None else sae.gate.b_gate
    return FeatureFacts(
        feature_idx=index,
        decoder_norm=float(sae.decoder_norms()[index]),
        encoder_norm=float(sae.W_enc[:, index].float().norm()) * sae.input_scale,
        encoder_bias=float(bias[index]),
        threshold=None if sae.threshold is None else float(sae.threshold[index]),
    )
