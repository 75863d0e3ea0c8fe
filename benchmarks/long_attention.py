"""Two ways to compute the attention of one new token over long caches on a processor: `python -m
benchmarks.long_attention`.

The fused kernel of PyTorch is what the running batch uses. Two batched products with a softmax between them are the
other way; their scores are rounded to bfloat16. The error of each is measured against float64.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import asdict
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from benchmarks.kept import Kept
from benchmarks.machine import Spread

LAYERS, ROWS, KV_HEADS, GROUPS, DIM = 16, 4, 2, 5, 64
"""The heads of the 91M shape: each head of keys serves `GROUPS` heads of queries."""
TOKENS = 4096
ROUNDS = 20
Way = Callable[[Tensor, Tensor, Tensor], Tensor]


def fused(query: Tensor, keys: Tensor, values: Tensor) -> Tensor:
    return scaled_dot_product_attention(query, keys, values)


def products(query: Tensor, keys: Tensor, values: Tensor) -> Tensor:
    scores = query @ keys.transpose(-1, -2) * DIM**-0.5
    return torch.softmax(scores, -1, dtype=torch.float32).to(values.dtype) @ values


WAYS: dict[str, Way] = {"fused kernel": fused, "two batched products": products}


@torch.inference_mode()
def measured() -> dict[str, Any]:
    """By way: the seconds of all layers, the bytes read per second, and the mean relative error."""
    source = torch.Generator().manual_seed(0)

    def drawn(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=source).bfloat16()

    query = drawn(ROWS, KV_HEADS, GROUPS, DIM)
    caches = [[drawn(ROWS, KV_HEADS, TOKENS, DIM) for _ in range(2)] for _ in range(LAYERS)]
    size = sum(tensor.nbytes for cache in caches for tensor in cache)
    exact = products(query.double(), *(tensor.double() for tensor in caches[0]))
    seconds: dict[str, list[float]] = {name: [] for name in WAYS}
    for _ in range(ROUNDS):
        for name, way in WAYS.items():
            since = time.perf_counter()
            for cache in caches:
                way(query, *cache)
            seconds[name].append(time.perf_counter() - since)
    found: dict[str, Any] = {"bytes": size}
    for name, way in WAYS.items():
        error = (way(query, *caches[0]).double() - exact).norm() / exact.norm()
        times = Spread.of(seconds[name])
        found[name] = {
            "seconds": asdict(times),
            "bytes_per_s": size / times.median,
            "relative_error": error.item(),
        }
    return found


def main() -> None:
    shape = {"layers": LAYERS, "rows": ROWS, "kv_heads": KV_HEADS, "tokens": TOKENS}
    kept = Kept("long-attention", shape=shape)
    found = measured()
    for name in WAYS:
        one = found[name]
        print(
            f"{name}: {one['seconds']['median'] * 1e3:.1f} ms, {one['bytes_per_s'] / 1e9:.1f} GB/s, "
            f"relative error {one['relative_error']:.1e}"
        )
    kept.end({"long-attention": found})


if __name__ == "__main__":
    main()
