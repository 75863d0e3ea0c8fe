"""The tokens that features of an attached SAE, or given directions, promote and suppress."""

from __future__ import annotations

from collections.abc import Callable, Generator

import torch
from torch import Tensor

from steerserve.errors import Refusal
from steerserve.messages import Promote, Promoted
from steerserve.rules.steering.live import check_index
from steerserve.worker.model.unembedding import Unembedding
from steerserve.worker.sae.canonical import Sae

CPU_PRODUCTS = 1 << 33
CARD_PRODUCTS = 1 << 40
"""The most products of two numbers in one answer: a fraction of a second on a host and on a card."""


def promote(
    command: Promote, unembedding: Unembedding, sae: Sae | None, text_of: Callable[[int], str]
) -> Generator[None, None, Promoted]:
    """What directions promote, in slices.

    Raises:
        Refusal: INVALID_FEATURE_INDEX; SAE_INCOMPATIBLE where the directions are not of the residual stream's width.
    """
    hidden = len(unembedding.gain)
    asked = len(command.directions) // (4 * hidden) if sae is None else len(command.features)
    on_card = unembedding.device.type != "cpu"
    products = CARD_PRODUCTS if on_card else CPU_PRODUCTS
    count = min(asked, max(1, products // (unembedding.vocabulary * hidden)))
    if sae is not None and sae.d_in != hidden:
        raise Refusal(
            "SAE_INCOMPATIBLE",
            f"the SAE reads {sae.d_in} numbers, and the residual stream has {hidden}",
        )
    if sae is None:
        given = torch.frombuffer(bytearray(command.directions), dtype=torch.float32)
        directions = given.view(-1, hidden)[:count]
    else:
        directions = _of_features(sae, command.features, count)
    tokens, values = yield from unembedding.extremes(directions, command.top)
    spelled = set(tokens.flatten().tolist()) if command.is_spelled else set()
    return Promoted(
        command.id,
        count,
        tokens.shape[-1],
        _bytes(tokens.to(torch.int32)),
        _bytes(values),
        {token: text_of(token) for token in spelled},
    )


def _of_features(sae: Sae, features: list[int], count: int) -> Tensor:
    for index in features:
        check_index(index, sae.d_sae)
    return sae.directions(features[:count])


def _bytes(tensor: Tensor) -> bytes:
    return tensor.cpu().contiguous().numpy().tobytes()
