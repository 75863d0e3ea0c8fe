"""What tests of formats have in common: loaded against the reference, refused by code."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch

from steerserve.errors import Refusal
from steerserve.messages import SaeSource
from steerserve.worker.sae import formats
from steerserve.worker.sae.canonical import Sae
from tests.worker.sae.checkpoints import D_IN, Arrays
from tests.worker.sae.reference import How, compute

X = np.random.default_rng(3).normal(size=(20, D_IN)).astype(np.float32) * 3 + 0.5


def assert_computes(sae: Sae, arrays: Arrays, how: How, atol: float = 1e-5) -> None:
    """Both directions, against maths with the input scaled by c and nothing folded."""
    features, x_hat = compute(X, arrays, how)
    assert (features != 0).any()
    assert (features == 0).any()
    ours, ours_hat = sae.reconstruct(torch.from_numpy(X))
    np.testing.assert_allclose(ours.numpy(), features, atol=atol, rtol=atol)
    np.testing.assert_allclose(ours_hat.numpy(), x_hat, atol=atol, rtol=atol)
    assert torch.equal(sae.encode(torch.from_numpy(X)), ours)


def refused(source: SaeSource, read: Callable[[SaeSource], object] = formats.load) -> Refusal:
    with pytest.raises(Refusal) as caught:
        read(source)
    assert source.path not in caught.value.message
    return caught.value
