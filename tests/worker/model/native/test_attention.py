"""The compiled attention of decode passes."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from steerserve.worker.model import native
from tests.worker.compiled import COMPILED


@COMPILED
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
@pytest.mark.parametrize(
    ("heads", "shared", "dim", "capacity", "window", "cap"),
    [(10, 2, 64, 200, 0, 0.0), (4, 4, 16, 64, 0, 2.0), (20, 1, 128, 150, 37, 0.0)],
)
@torch.inference_mode()
def test_attention_is_that_of_float64_and_each_row_has_its_own_bits(
    dtype: torch.dtype, heads: int, shared: int, dim: int, capacity: int, window: int, cap: float
) -> None:
    source = torch.Generator().manual_seed(0)
    count, room = 5, 7

    def random(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=source).to(dtype)

    query, key, value = (random(count, n, dim) for n in (heads, shared, shared))
    turns = torch.randn(count, dim // 2, generator=source).repeat(1, 2)
    cosines, sines = turns.cos().to(dtype), turns.sin().to(dtype)
    keys, values = random(room, shared, capacity, dim), random(room, shared, capacity, dim)
    places = torch.tensor([6, 0, 3, 1, 5])
    positions = torch.tensor([0, 63, 40, capacity - 1, 5])

    def attended(rows: list[int], threads: int = 1) -> tuple[Tensor, Tensor, Tensor]:
        held = keys.clone(), values.clone()
        given = [t[rows].contiguous() for t in (query, key, value, cosines, sines)]
        where = places[rows], positions[rows]
        out = torch.empty(len(rows), heads * dim, dtype=dtype)
        kernels = native.kernels()
        assert kernels is not None
        steps = [heads * dim, shared * dim, shared * dim, dim]
        pointers = [t.data_ptr() for t in (*held, *where, out)]
        sizes = [len(rows), heads, shared, dim, capacity, window]
        before = torch.get_num_threads()
        torch.set_num_threads(threads)
        kernels.attend(
            dtype,
            native.Heads(*(t.data_ptr() for t in given), *steps, *pointers, *sizes, dim**-0.5, cap),
        )
        torch.set_num_threads(before)
        return out, *held

    out, written, kept = attended(list(range(count)))
    for row in range(count):
        assert torch.equal(attended([row])[0][0], out[row])
    assert torch.equal(attended([4, 3, 2, 1, 0], threads=3)[0], out.flip(0))
    exact_keys, exact_values = keys.double(), values.double()
    exact_keys[places, :, positions] = turned(key, cosines, sines)
    exact_values[places, :, positions] = value.double()
    off = 2.0**-7 if dtype == torch.bfloat16 else 1e-5
    torch.testing.assert_close(written.double(), exact_keys, rtol=off, atol=off)
    assert torch.equal(kept.double(), exact_values)
    seen = torch.arange(capacity) <= positions[:, None]
    if window:
        seen &= torch.arange(capacity) > positions[:, None] - window
    exact = attention(
        turned(query, cosines, sines)[:, :, None],
        written[places].double().repeat_interleave(heads // shared, 1),
        exact_values[places].repeat_interleave(heads // shared, 1),
        seen[:, None, None],
        cap,
    )
    torch.testing.assert_close(out.double(), exact.reshape(count, -1), rtol=off, atol=off)


def attention(query: Tensor, keys: Tensor, values: Tensor, seen: Tensor, cap: float) -> Tensor:
    """Attention [..., T, dim] in float64 of queries [..., T, dim] that see some of the keys [..., tokens, dim]."""
    scores = query @ keys.transpose(-1, -2) * query.shape[-1] ** -0.5
    if cap:
        scores = cap * torch.tanh(scores / cap)
    return scores.masked_fill(~seen, -torch.inf).softmax(-1) @ values


def turned(head: Tensor, cosines: Tensor, sines: Tensor) -> Tensor:
    """Heads [rows, heads, dim] in float64, turned by their angles."""
    first, second = head.double().chunk(2, -1)
    swapped = torch.cat([-second, first], -1)
    return head.double() * cosines.double()[:, None] + swapped * sines.double()[:, None]
