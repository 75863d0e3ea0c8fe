"""The KV cache: room for each row's own length, without gaps, and nothing of a row that left."""

from __future__ import annotations

import random

import pytest
import torch

from steerserve.worker.model.kv import CacheSlot, KvCache

HEADS, DIM, LAYERS = 2, 4, 3


def mark(cache: KvCache, slot: CacheSlot, name: float) -> None:
    """Fill the whole room of a row with its name."""
    filled = torch.full((HEADS, slot.capacity, DIM), name)
    cache.put(slot, dict.fromkeys(range(LAYERS), (filled, -filled)), slot.capacity)


def check(cache: KvCache, slot: CacheSlot, name: float, length: int) -> None:
    for keys, values in cache.copy_tokens(slot, length).values():
        assert bool((keys == name).all())
        assert bool((values == -name).all())


def test_rows_keep_their_own_content_whatever_joins_grows_and_leaves() -> None:
    draw = random.Random(0)
    cache = KvCache(limit=4096)
    rows: dict[float, tuple[CacheSlot, int]] = {}
    for turn in range(400):
        held = sum(slot.capacity for slot, _ in rows.values())
        if draw.random() < 0.5 and held < 3000:
            slot = cache.open(draw.choice((64, 96, 128)))
            check(cache, slot, 0.0, slot.capacity)
            mark(cache, slot, float(turn + 1))
            rows[turn + 1.0] = slot, slot.capacity
        elif rows and draw.random() < 0.5:
            name, (slot, length) = draw.choice(list(rows.items()))
            if slot.capacity < 192 and held < 3000:
                cache.grow(slot, 192)
                rows[name] = slot, length
        elif rows:
            slot, _ = rows.pop(draw.choice(list(rows)))
            cache.close(slot)
        for name, (slot, length) in rows.items():
            check(cache, slot, name, length)
        assert sum(slot.capacity for slot, _ in rows.values()) <= cache.tokens <= cache.limit
    cache.release()
    assert cache.tokens == 0


def test_a_row_finds_nothing_of_the_row_before_it() -> None:
    cache = KvCache(limit=4096)
    first, second = cache.open(64), cache.open(64)
    mark(cache, first, float("nan"))
    mark(cache, second, 2.0)
    cache.close(first)
    check(cache, second, 2.0, 64)
    third = cache.open(64)
    check(cache, third, 0.0, 64)


@pytest.mark.parametrize("reads_parts", [False, True])
def test_a_decode_pass_writes_each_row_at_its_own_place(*, reads_parts: bool) -> None:
    cache = KvCache(limit=4096, reads_parts=reads_parts)
    slots = [cache.open(size) for size in (64, 64, 64, 128)]
    for i, slot in enumerate(slots):
        mark(cache, slot, float(i + 1))
    # the second row takes no part
    rows, positions = [slots[0], slots[2], slots[3]], [5, 63, 100]
    cache.begin_decode(rows, positions, torch.device("cpu"))
    assert [part.is_whole for part in cache.parts] == [False, True]
    new = torch.arange(10.0, 13.0)[:, None, None, None].expand(3, HEADS, 1, DIM)
    keys, values = cache.update(new, -new, 0)
    assert keys.shape == ((3, HEADS, 1, DIM) if reads_parts else (3, HEADS, 128, DIM))
    for i, (slot, position) in enumerate(zip(rows, positions, strict=True)):
        held, _ = cache.copy_tokens(slot, slot.capacity)[0]
        assert bool((held[:, position] == 10.0 + i).all())
        assert int((held == 10.0 + i).sum()) == HEADS * DIM
        if not reads_parts:
            assert torch.equal(keys[i, :, : slot.capacity], held)
            assert bool((keys[i, :, slot.capacity :] == 0).all())
    assert torch.equal(values, -keys)
    check(cache, slots[1], 2.0, 64)
