"""The compiled attention of prompts."""

from __future__ import annotations

from itertools import pairwise

import pytest
import torch
from torch import Tensor

from steerserve.worker.model import native
from tests.worker.compiled import COMPILED
from tests.worker.model.native.test_attention import attention, turned


@COMPILED
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
@pytest.mark.parametrize(
    ("heads", "shared", "dim", "window", "cap"),
    [(10, 2, 64, 0, 0.0), (4, 4, 16, 0, 2.0), (20, 1, 128, 37, 0.0)],
)
@torch.inference_mode()
def test_attention_of_prompts_is_that_of_float64_whatever_the_parts_of_the_prompt(
    dtype: torch.dtype, heads: int, shared: int, dim: int, window: int, cap: float
) -> None:
    source = torch.Generator().manual_seed(0)
    tokens, capacity = 150, 192

    def random(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=source).to(dtype)

    query, key, value = (random(tokens, n, dim) for n in (heads, shared, shared))
    turns = torch.randn(tokens, dim // 2, generator=source).repeat(1, 2)
    cosines, sines = turns.cos().to(dtype), turns.sin().to(dtype)

    def attended(held: tuple[Tensor, Tensor], parts: list[tuple[int, int]]) -> Tensor:
        """A pass in which each part of the prompt, from one token to another, is a row."""
        size = max(end - start for start, end in parts)
        padded = [
            torch.stack(
                [
                    torch.cat([t[start:end], t[:1].expand(size - end + start, *t.shape[1:])])
                    for start, end in parts
                ]
            )
            for t in (query, key, value, cosines, sines)
        ]
        out = torch.zeros(len(parts), size, heads, dim, dtype=dtype)
        told = torch.tensor(
            [
                [held[0].data_ptr()] * len(parts),
                [held[1].data_ptr()] * len(parts),
                [capacity] * len(parts),
                [start for start, _ in parts],
                [end - start for start, end in parts],
            ]
        )
        kernels = native.kernels()
        assert kernels is not None
        kernels.attend_prompts(
            dtype,
            native.Prompts(
                *(t.data_ptr() for t in padded),
                *(heads * dim, shared * dim, shared * dim, size * dim),
                *(row.data_ptr() for row in told),
                *(out.data_ptr(), len(parts), size, heads, shared, dim, window, dim**-0.5, cap),
            ),
        )
        found = [
            (own[: end - start], own[end - start :])
            for own, (start, end) in zip(out, parts, strict=True)
        ]
        assert not any(padding.any() for _, padding in found)
        return torch.cat([own for own, _ in found])

    def room() -> tuple[Tensor, Tensor]:
        return torch.zeros(shared, capacity, dim, dtype=dtype), torch.zeros(
            shared, capacity, dim, dtype=dtype
        )

    whole = room()
    out = attended(whole, [(0, tokens)])
    before = torch.get_num_threads()
    for threads, ends in ((1, [1, 64, 65, 70, 150]), (3, [33, 34, 150])):
        torch.set_num_threads(threads)
        held = room()
        found = [attended(held, [part]) for part in pairwise([0, *ends])]
        torch.set_num_threads(before)
        assert torch.equal(torch.cat(found), out)
        assert all(map(torch.equal, held, whole))
    # rows of one pass, which write their keys before any of them reads
    assert torch.equal(attended(room(), [(0, 40), (40, 41), (41, 150)]), out)
    exact_key = turned(key, cosines, sines)
    off = 2.0**-7 if dtype == torch.bfloat16 else 1e-5
    torch.testing.assert_close(
        whole[0][:, :tokens].double(), exact_key.transpose(0, 1), rtol=off, atol=off
    )
    assert torch.equal(whole[1][:, :tokens], value.transpose(0, 1))
    at = torch.arange(tokens)
    seen = at <= at[:, None]
    if window:
        seen &= at > at[:, None] - window
    exact = attention(
        turned(query, cosines, sines).transpose(0, 1),
        whole[0][:, :tokens].double().repeat_interleave(heads // shared, 0),
        value.double().transpose(0, 1).repeat_interleave(heads // shared, 0),
        seen,
        cap,
    )
    torch.testing.assert_close(out.double(), exact.transpose(0, 1), rtol=off, atol=off)
