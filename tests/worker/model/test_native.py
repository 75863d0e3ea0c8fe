"""The compiled functions of the processor: when there are some, and what they compute."""

from __future__ import annotations

import shutil
from itertools import pairwise
from pathlib import Path

import pytest
import torch
from structlog.testing import capture_logs
from torch import Tensor
from torch.nn import functional

from steerserve.rules.models.compilers import COMPILERS
from steerserve.worker.model import native, packing

COMPILED = pytest.mark.skipif(
    not any(map(shutil.which, COMPILERS)), reason="there is no C++ compiler"
)
OWN_PRODUCTS = pytest.mark.skipif(
    not any(map(shutil.which, COMPILERS)) or packing._has_kernels(torch.bfloat16),
    reason="there is no C++ compiler, or the products are those of oneDNN",
)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of the compiled libraries, which is not there yet."""
    monkeypatch.setattr(native.platformdirs, "user_cache_dir", lambda _: str(tmp_path))
    return tmp_path / "kernels"


def loaded() -> tuple[native.Kernels | None, str]:
    """The functions as a new engine would get them, and the reason that the log has too where there are none."""
    with capture_logs() as logs:
        found, why = native.found.__wrapped__()
    assert [entry["why"] for entry in logs] == ([] if found else [why])
    return found, why


def test_without_a_compiler_the_log_says_so(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shutil, "which", lambda _: None)
    assert loaded() == (None, "there is no C++ compiler (c++, g++, clang++)")


@COMPILED
def test_a_source_that_does_not_compile_is_no_error_of_the_load(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = tmp_path / "broken.cpp"
    source.write_text("int broken(\n")
    monkeypatch.setattr(native, "SOURCE", source)
    found, why = loaded()
    assert found is None
    assert "broken.cpp" in why
    assert list(folder.iterdir()) == []


@COMPILED
def test_a_library_is_compiled_once_and_not_loaded_where_others_may_write(folder: Path) -> None:
    assert loaded()[0] is not None
    (kept,) = folder.iterdir()
    before = kept.stat().st_mtime_ns
    assert loaded()[0] is not None
    assert kept.stat().st_mtime_ns == before
    folder.chmod(0o777)
    found, why = loaded()
    assert found is None
    assert why == f"others may write into {folder}"


@COMPILED
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
@pytest.mark.parametrize(
    ("heads", "shared", "dim", "capacity", "window"),
    [(10, 2, 64, 200, 0), (4, 4, 16, 64, 0), (20, 1, 128, 150, 37)],
)
@torch.inference_mode()
def test_attention_is_that_of_float64_and_each_row_has_its_own_bits(
    dtype: torch.dtype, heads: int, shared: int, dim: int, capacity: int, window: int
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
            native.Heads(*(t.data_ptr() for t in given), *steps, *pointers, *sizes, dim**-0.5),
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
    exact = functional.scaled_dot_product_attention(
        turned(query, cosines, sines)[:, :, None],
        written[places].double().repeat_interleave(heads // shared, 1),
        exact_values[places].repeat_interleave(heads // shared, 1),
        attn_mask=seen[:, None, None],
    )
    torch.testing.assert_close(out.double(), exact.reshape(count, -1), rtol=off, atol=off)


def turned(head: Tensor, cosines: Tensor, sines: Tensor) -> Tensor:
    """Heads [rows, heads, dim] in float64, turned by their angles."""
    first, second = head.double().chunk(2, -1)
    swapped = torch.cat([-second, first], -1)
    return head.double() * cosines.double()[:, None] + swapped * sines.double()[:, None]


@COMPILED
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
@pytest.mark.parametrize(
    ("heads", "shared", "dim", "window"), [(10, 2, 64, 0), (4, 4, 16, 0), (20, 1, 128, 37)]
)
@torch.inference_mode()
def test_attention_of_prompts_is_that_of_float64_whatever_the_parts_of_the_prompt(
    dtype: torch.dtype, heads: int, shared: int, dim: int, window: int
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
                *(out.data_ptr(), len(parts), size, heads, shared, dim, window, dim**-0.5),
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
    exact = functional.scaled_dot_product_attention(
        turned(query, cosines, sines).transpose(0, 1),
        whole[0][:, :tokens].double().repeat_interleave(heads // shared, 0),
        value.double().transpose(0, 1).repeat_interleave(heads // shared, 0),
        attn_mask=seen,
    )
    torch.testing.assert_close(out.double(), exact.transpose(0, 1), rtol=off, atol=off)
