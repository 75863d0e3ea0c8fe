"""Raw activations: the values of sites are those that the forward pass computed at the positions asked for, bit for bit."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import ExitStack
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from steerserve.errors import Refusal
from steerserve.messages import Overlay, Piece, Plan, Scored, Suppressed
from steerserve.parts.activations_raw.form import ACTIVATIONS_RAW, RawChunk, RawReads, RawSite
from steerserve.rules.saes.sites import ORDER, RESID_POST
from steerserve.rules.steering.positions import ALL, Positions, Selection
from steerserve.worker.batch import prefix
from steerserve.worker.model.checkpoint import Checkpoint
from steerserve.worker.sae import sites as worker_sites
from tests.refusals import refusal_of
from tests.worker.running import (
    Answer,
    Bench,
    generated,
    hooked,
    passed,
    random_sae,
    site_of,
    words,
)

Loaded = Callable[[str], Checkpoint]
KEY = "sae@1"
SAE = random_sae(32)
STEERED = Overlay(0, {KEY: {3: 2.0, 7: -1.5}})
WHERE = "return_activations_raw.sites[0]"
LIMIT = 1 << 30
IDS = list(range(5, 17))


def reads(
    *sites: tuple[str, int | None],
    positions: Positions = ALL,
    heads: tuple[int, ...] | None = None,
    **changed: Any,
) -> RawReads:
    values = {
        "is_before": False,
        "dtype": "float32",
        "is_listed": False,
        "max_bytes": LIMIT,
        "all_max_bytes": LIMIT,
        **changed,
    }
    asked = tuple(RawSite(WHERE, site, layer, heads) for site, layer in sites)
    return RawReads(asked, positions, **values)


def at(*names: str, **fields: Any) -> Positions:
    return Positions(Selection(names=names, **fields))


def found(outcomes: Sequence[Piece | Scored]) -> RawChunk:
    """What the last outcome of a row has; those before it have nothing."""
    *before, last = [ACTIVATIONS_RAW.read(one.parts) for one in outcomes]
    assert before == [None] * len(before)
    assert last is not None
    return last


def numbers(chunk: RawChunk, place: int = 0, dtype: str = "<f4") -> np.ndarray[Any, Any]:
    values = chunk.values[place]
    return np.frombuffer(values.data, dtype).reshape(len(chunk.positions), *values.shape)


def own(model: Checkpoint, tokens: list[int], *sites: tuple[str, int]) -> list[Tensor]:
    """The values at these sites in a pass of its own over the tokens."""
    values: dict[tuple[str, int], Tensor] = {}

    def keep(place: tuple[str, int], value: Tensor) -> None:
        values[place] = value[0].clone()

    with ExitStack() as hooks, torch.inference_mode():
        for site, layer in sites:
            hook = site_of(model, layer, site).watch(partial(keep, (site, layer)))
            hooks.callback(hook.remove)
        model.model(input_ids=torch.tensor([tokens]), use_cache=False)
    return [values[place] for place in sites]


def close(read: np.ndarray[Any, Any], expected: Any) -> None:
    """These are the same values, up to the rounding of passes of other sizes."""
    exact = expected.float().numpy() if isinstance(expected, Tensor) else expected
    np.testing.assert_allclose(read, exact, rtol=2e-2, atol=2e-2)


def beside_another(model: Checkpoint, prompt: int, raw: RawReads) -> tuple[Answer, RawChunk]:
    """An answer and what it reads at all its positions, beside a row that reads nothing and keeps its text."""
    bench = Bench(model)
    other = bench.ask(1, words(9), max_tokens=12, plan=Suppressed())
    answer = bench.ask(2, words(prompt), max_tokens=6, plan=Suppressed(), raw=raw)
    bench.run()
    assert bench.refused == {}
    chunk = found(answer.pieces)
    assert list(chunk.positions) == list(range(len(passed(answer))))
    assert other.tokens == generated(model, words(9), 12)
    return answer, chunk


def of_model(model: Checkpoint) -> list[tuple[str, int]]:
    """All sites of layer 0 or 1, in the order of a pass."""
    has = worker_sites.widths(model.model, model.layers)
    return [(site, 0 if site == "embed" else 1) for site in ORDER if site in has]


@pytest.mark.parametrize("name", ["llama", "gemma2", "gpt2", "mixtral", "granite"])
def test_each_site_has_the_values_of_a_hook_of_its_own(loaded: Loaded, name: str) -> None:
    """In prefill and in decode steps, beside another row."""
    model = loaded(name)
    places = of_model(model)
    answer, chunk = beside_another(model, 20, reads(*places))
    for place, expected in enumerate(own(model, passed(answer), *places)):
        close(numbers(chunk, place).reshape(len(expected), -1), expected)
    assert answer.tokens == generated(model, words(20), 6)


def test_values_have_the_bits_of_a_hook_in_the_same_passes(llama: Checkpoint) -> None:
    site, read = site_of(llama, 1), []

    def keep(value: Tensor) -> None:
        read.append(value[0].clone())

    bench = Bench(llama)
    with hooked(site, keep):
        answer = bench.ask(
            1, words(20), max_tokens=6, plan=Suppressed(), raw=reads((RESID_POST, 1))
        )
        bench.run()
    chunk = found(answer.pieces)
    prompt, *steps = read  # padding follows the prompt
    expected = torch.cat([prompt[: len(answer.row.prompt)], *steps]).float().numpy()
    assert np.array_equal(numbers(chunk), expected)


@pytest.mark.parametrize("is_before", [False, True])
@pytest.mark.parametrize("plan", [STEERED, Suppressed()], ids=["steered", "plain"])
def test_values_before_and_after_the_edits_of_the_site(
    llama: Checkpoint, plan: Plan, *, is_before: bool
) -> None:
    bench, asked = Bench(llama), reads((RESID_POST, 1), is_before=is_before)
    with bench.attached(KEY, SAE, 1):
        bench.ask(1, words(9), max_tokens=12, plan=Suppressed())
        answer = bench.ask(2, words(20), max_tokens=4, plan=plan, raw=asked)
        plain = bench.score(3, "", ids=answer.row.prompt, raw=asked)
        bench.run()
    chunk = found(answer.pieces)
    prompt = len(answer.row.prompt)
    unsteered = numbers(found([bench.scores[3, 0]]))
    assert len(plain) == 1
    assert len(unsteered) == prompt
    delta = torch.zeros(SAE.d_in)
    if plan is STEERED and not is_before:
        delta = sum((v * SAE.W_dec[i] for i, v in STEERED.values[KEY].items()), delta)
    expected = unsteered + delta.numpy()
    close(numbers(chunk)[:prompt], expected)


@pytest.mark.parametrize(
    ("positions", "expected"),
    [
        (at("prompt"), range(19)),
        (at("last_prompt"), [19]),
        (at("generated"), range(20, 25)),
        (at("output"), range(19, 25)),
        (at(prompt_positions=(-3, 2)), [2, 17]),
        (at(prompt_window=(4, 8), generated_window=(1, 3)), [4, 5, 6, 7, 21, 22]),
        (Positions(Selection(names=("all",)), Selection(names=("prompt",))), range(19, 25)),
    ],
    ids=lambda value: "" if isinstance(value, Positions) else str(list(value)),
)
def test_only_the_positions_that_are_named_are_read(
    loaded: Loaded, monkeypatch: pytest.MonkeyPatch, positions: Positions, expected: Sequence[int]
) -> None:
    """Also those that a kept beginning of the prompt would skip."""
    monkeypatch.setattr(prefix, "LEAST", 8)
    bench, ids = Bench(loaded("llama_wide"), prefix_tokens=256), list(range(5, 25))
    first = bench.ask(1, "", ids=ids, max_tokens=6, raw=reads((RESID_POST, 1)))
    bench.run()
    answer = bench.ask(
        2, "", ids=ids, max_tokens=6, raw=reads((RESID_POST, 1), positions=positions)
    )
    bench.run()
    whole, chunk = found(first.pieces), found(answer.pieces)
    assert list(chunk.positions) == list(expected)
    assert np.array_equal(numbers(chunk), numbers(whole)[list(expected)])


def test_heads_and_types(llama: Checkpoint) -> None:
    bench = Bench(llama)
    kept: dict[str, RawChunk] = {}
    for number, (name, form) in enumerate(
        {
            "all": reads(("hook_z", 1)),
            "heads": reads(("hook_z", 1), heads=(2, 0)),
            "half": reads(("hook_z", 1), dtype="float16"),
            "brain": reads(("hook_z", 1), dtype="bfloat16"),
            "listed": reads(("hook_z", 1), dtype="bfloat16", is_listed=True),
        }.items()
    ):
        answer = bench.ask(number, "", ids=IDS, max_tokens=3, raw=form)
        bench.run()
        kept[name] = found(answer.pieces)
    whole = numbers(kept["all"])
    heads = site_of(llama, 1, "hook_z").heads
    assert whole.shape == (14, heads, whole.shape[-1])
    assert np.array_equal(numbers(kept["heads"]), whole[:, [2, 0]])
    assert np.array_equal(numbers(kept["half"], dtype="<f2"), whole.astype("<f2"))
    bits = numbers(kept["brain"], dtype="<u2").astype("<u4") << 16
    rounded = torch.from_numpy(whole.copy()).bfloat16().float().numpy()
    assert np.array_equal(bits.view("<f4"), rounded)
    assert np.array_equal(numbers(kept["listed"]), rounded)


def test_a_value_that_the_type_cannot_hold_is_refused_by_its_place(llama: Checkpoint) -> None:
    huge = Overlay(0, {KEY: {3: 1e7}})
    bench = Bench(llama)
    with bench.attached(KEY, SAE, 1):
        bench.ask(1, words(9), plan=huge, raw=reads((RESID_POST, 1), dtype="float16"))
        fine = bench.ask(2, words(9), max_tokens=2, plan=huge, raw=reads((RESID_POST, 1)))
        bench.run()
    (refused,) = bench.refused.values()
    assert (refused.id, refused.code) == (1, "NON_FINITE")
    assert "float16 cannot hold; bfloat16 can" in refused.message
    assert "resid_post of layer 1 at position 0" in refused.message
    assert len(found(fine.pieces).positions) == len(fine.row.prompt) + 1


def test_what_a_request_could_have_too_much_of_is_refused_with_the_arithmetic(
    llama: Checkpoint,
) -> None:
    bench, width = Bench(llama), site_of(llama, 1).width
    size = (12 + 4) * width * 4
    with pytest.raises(Refusal, match=f"16 positions x {width} numbers x 4 bytes = {size} bytes"):
        bench.ask(1, "", ids=IDS, max_tokens=4, raw=reads((RESID_POST, 1), max_bytes=size - 1))
    two = reads((RESID_POST, 1), max_bytes=2 * size - 1)
    with pytest.raises(Refusal, match=f"and {size} bytes of the choices before it"):
        bench.ask(2, "", ids=IDS, n=2, max_tokens=4, raw=two)
    bench.ask(3, "", ids=IDS, max_tokens=4, raw=reads((RESID_POST, 1), all_max_bytes=size))
    with pytest.raises(Refusal, match=f"and {size} bytes of all that runs") as refused:
        bench.ask(4, "", ids=IDS, max_tokens=4, raw=reads((RESID_POST, 1), all_max_bytes=size))
    assert refused.value.code == "INSUFFICIENT_MEMORY"
    bench.run()
    bench.ask(5, "", ids=IDS, max_tokens=4, raw=reads((RESID_POST, 1), all_max_bytes=size))
    bench.run()


@pytest.mark.parametrize(
    ("form", "where"),
    [
        (reads(("mlp_neurons", 7)), f"{WHERE}.site"),
        (reads(("hook_z", 1), heads=(99,)), f"{WHERE}.heads"),
        (reads((RESID_POST, 1), heads=(0,)), f"{WHERE}.heads"),
        (
            reads((RESID_POST, 1), positions=at(prompt_positions=(500,))),
            "return_activations_raw.positions.prompt_positions",
        ),
    ],
)
def test_what_the_model_or_the_prompt_does_not_have_is_refused_by_its_place(
    llama: Checkpoint, form: RawReads, where: str
) -> None:
    refused = refusal_of(Bench(llama).ask, 1, words(12), raw=form)
    assert refused.param == where
    assert refused.code == "INVALID_PARAMETER"


def test_rows_that_read_many_tokens_share_passes(llama: Checkpoint) -> None:
    """Their copies are cut into those of each row after some passes."""
    bench = Bench(llama)
    answers = [
        bench.ask(n, words(6 + n), max_tokens=150 - n, raw=reads((RESID_POST, 0), (RESID_POST, 1)))
        for n in range(4)
    ]
    bench.run()
    for answer in answers:
        chunk, tokens = found(answer.pieces), passed(answer)
        assert list(chunk.positions) == list(range(len(tokens)))
        for place, expected in enumerate(own(llama, tokens, (RESID_POST, 0), (RESID_POST, 1))):
            close(numbers(chunk, place), expected)


@pytest.mark.parametrize(
    ("is_whole", "site", "reading", "steps"),
    [
        (True, "k", 1, [3, 1]),
        (True, "k", 3, [4]),
        (True, "mlp_out", 1, [4]),
        (True, RESID_POST, 1, [4]),
        (False, "k", 1, [4]),
    ],
)
def test_few_rows_that_read_inside_attention_decode_in_a_pass_of_their_own(
    llama: Checkpoint,
    monkeypatch: pytest.MonkeyPatch,
    is_whole: bool,
    site: str,
    reading: int,
    steps: list[int],
) -> None:
    """A hook inside attention switches the compiled call of its layer off, and the other rows do not wait for that."""
    monkeypatch.setattr(Checkpoint, "has_whole_layers", is_whole)
    bench, passes = Bench(llama), []
    asked = reads((site, 0), (site, 1), positions=at("generated"))
    answers = [
        bench.ask(n, words(9 + n), max_tokens=6, raw=asked if n < reading else None)
        for n in range(4)
    ]
    with hooked(site_of(llama), lambda value: passes.append(value.shape[:2])):
        bench.run()
    decoded = [rows for rows, tokens in passes if tokens == 1]
    assert decoded == steps * (len(decoded) // len(steps))
    for n, answer in enumerate(answers):
        assert answer.tokens == generated(llama, words(9 + n), 6)
        if n >= reading:
            continue
        chunk = found(answer.pieces)
        assert len(chunk.positions) == 5
        for place, expected in enumerate(own(llama, passed(answer), (site, 0), (site, 1))):
            close(numbers(chunk, place).reshape(5, -1), expected[-5:])


def test_a_row_whose_positions_are_read_decodes_with_the_others(
    llama: Checkpoint, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Checkpoint, "has_whole_layers", True)
    bench, passes = Bench(llama), []
    asked = reads(("k", 1), positions=at("last_prompt"))
    for n in range(4):
        bench.ask(n, words(9 + n), max_tokens=6, raw=asked if n == 1 else None)
    with hooked(site_of(llama), lambda value: passes.append(value.shape[:2])):
        bench.run()
    assert {rows for rows, tokens in passes if tokens == 1} == {4}
