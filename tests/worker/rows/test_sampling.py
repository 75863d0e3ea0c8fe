"""Sampling: the exact nucleus, the penalty of its paper, and rows that never touch each other."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from steerserve.worker.model import native
from steerserve.worker.rows import sampling
from steerserve.worker.rows.sampling import Sampler, generator, sample

DRAWS = 6000
IS_COMPILED = native.kernels() is not None
LOGITS = torch.tensor([1.0, 3.0, -2.0, 2.5, 0.0, -5.0, 2.4, 1.5, -1.0, 0.3, 2.9, -math.inf])


@pytest.fixture(autouse=True, params=["compiled", "tensor library"] if IS_COMPILED else [""])
def _functions(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each test runs with the compiled functions, where there are some, and without them."""
    if request.param == "tensor library":
        monkeypatch.setattr(native, "kernels", lambda: None)


def choice(temperature: float = 1.0, top_p: float = 1.0, seed: int = 0) -> Sampler:
    return Sampler(temperature, top_p, 1.0, generator(seed, 0))


def nucleus(logits: Tensor, temperature: float, top_p: float) -> Tensor:
    """Probabilities of the sorted nucleus: the fewest most probable tokens that hold `top_p`, renormalised."""
    weights = (logits.double() / temperature).softmax(-1)
    order = weights.argsort(descending=True)
    before = weights[order].cumsum(0) - weights[order]
    kept = torch.zeros_like(weights)
    kept[order[before < top_p]] = 1.0
    return weights * kept / (weights * kept).sum()


def drawn_slowly(logits: Tensor, one: Sampler) -> int:
    """The token that one row draws: the whole distribution is summed up for every draw."""
    weights = ((logits.float() - logits.float().max()) / one.temperature).softmax(-1)
    while True:
        mass = weights.cumsum(-1)
        uniform = torch.tensor(one.uniform())
        threshold = (uniform * mass[-1]).clamp_min(torch.finfo(torch.float32).tiny)
        token = int(torch.searchsorted(mass, threshold[None]).clamp_max(len(mass) - 1))
        above = torch.where(weights > weights[token], weights, 0.0)
        if above.cumsum(-1)[-1].item() < one.top_p or one.top_p == 1.0:
            return token
        weights = above


def assert_follows(counts: Tensor, expected: Tensor) -> None:
    """Pearson's statistic lies within six standard deviations of its mean."""
    assert counts[expected == 0].sum() == 0
    mean = expected[expected > 0] * counts.sum()
    statistic = ((counts[expected > 0] - mean) ** 2 / mean).sum().item()
    degrees = max(1, mean.numel() - 1)
    assert statistic < degrees + 6 * math.sqrt(2 * degrees)


@pytest.mark.parametrize(
    ("temperature", "top_p"),
    [(1.0, 1.0), (1.0, 0.9), (1.0, 0.5), (0.7, 0.8), (1.7, 0.95), (2.0, 0.3), (1.0, 1e-6)],
)
def test_draws_follow_the_exact_nucleus(temperature: float, top_p: float) -> None:
    one = choice(temperature, top_p, seed=5)
    drawn = sample(LOGITS.expand(DRAWS, -1), [one] * DRAWS)
    counts = torch.tensor(drawn).bincount(minlength=LOGITS.numel()).double()
    assert_follows(counts, nucleus(LOGITS, temperature, top_p))


def test_rows_of_one_pass_follow_their_own_settings() -> None:
    settings = [(1.0, 0.6), (0.5, 1.0), (2.0, 0.9)]
    rows = [choice(t, p, seed=i) for i, (t, p) in enumerate(settings)]
    drawn = torch.tensor(sample(LOGITS.expand(3 * DRAWS, -1), rows * DRAWS)).view(-1, 3)
    for column, (temperature, top_p) in enumerate(settings):
        counts = drawn[:, column].bincount(minlength=LOGITS.numel()).double()
        assert_follows(counts, nucleus(LOGITS, temperature, top_p))


@pytest.mark.parametrize(
    ("temperature", "top_p"), [(0.0, 1.0), (0.0, 0.5), (1.0, 0.0), (1e-6, 1.0)]
)
def test_no_temperature_or_no_nucleus_is_the_most_probable_token(
    temperature: float, top_p: float
) -> None:
    rows = [choice(temperature, top_p, seed) for seed in range(50)]
    assert set(sample(LOGITS.expand(50, -1), rows)) == {1}


@pytest.mark.parametrize("temperature", [1e-4, 1e-3, 1e-2])
def test_a_very_small_temperature_stays_finite(temperature: float) -> None:
    rows = [choice(temperature, 0.99, seed) for seed in range(20)]
    assert set(sample((LOGITS * 1e4).expand(20, -1), rows)) == {1}


def test_a_row_draws_the_same_whatever_stands_beside_it() -> None:
    alone = sample(LOGITS[None], [choice(seed=9)])
    crowd = [choice(seed=1), choice(0.0), choice(seed=9), choice(1.5, 0.5, seed=3)]
    logits = torch.stack([LOGITS.flip(0), LOGITS, LOGITS, LOGITS * 2])
    assert sample(logits, crowd)[2] == alone[0]


@pytest.mark.parametrize("size", [7, 512, 1300])
def test_every_row_draws_what_it_would_draw_slowly_and_alone(size: int) -> None:
    settings = [(1.0, 1.0), (1.0, 0.9), (0.7, 0.5), (2.0, 0.999), (1.3, 0.05), (0.8, 1.0)] * 3
    for turn in range(20):
        logits = torch.randn(len(settings), size, generator=generator(turn, 0)) * 3
        crowd = [choice(t, p, seed=turn + i) for i, (t, p) in enumerate(settings)]
        alone = [choice(t, p, seed=turn + i) for i, (t, p) in enumerate(settings)]
        slowly = [drawn_slowly(*pair) for pair in zip(logits, alone, strict=True)]
        assert sample(logits, crowd) == slowly
        for one, other in zip(crowd, alone, strict=True):
            assert one.uniform() == other.uniform()


def test_a_random_number_that_meets_a_sum_exactly_draws_the_token_that_completes_the_sum(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    sums = iter([n / 1024 for n in range(1024)])
    monkeypatch.setattr(Sampler, "uniform", lambda _: next(sums))
    drawn = sample(torch.zeros(1024, 1024), [choice()] * 1024)
    assert drawn == [0, *range(1023)]


@pytest.mark.parametrize("size", [3, 512, 1024, 1300])
def test_the_most_probable_token_is_the_first_of_equals_wherever_it_stands(size: int) -> None:
    for first in (0, 1, size // 2, size - 1):
        logits = torch.linspace(-2.0, -1.0, size).repeat(2, 1)
        logits[0, first:] = 1.0
        assert sample(logits, [choice(0.0), choice(0.0)]) == [first, size - 1]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_logits_are_not_modified(dtype: torch.dtype) -> None:
    logits = LOGITS[None].to(dtype)
    before = logits.clone()
    seen = torch.ones(LOGITS.numel(), dtype=torch.bool)
    sample(logits, [Sampler(1.0, 0.5, 1.3, generator(1, 0), seen)])
    assert torch.equal(logits, before)


# ---------------------------------------------------------------- rows that are no numbers


@pytest.mark.parametrize("bad", [math.nan, math.inf])
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_a_row_that_is_not_finite_gives_none_and_leaves_the_others_alone(
    bad: float, temperature: float
) -> None:
    broken = LOGITS.clone()
    broken[4] = bad
    logits = torch.stack([LOGITS, broken, LOGITS.flip(0)])
    rows = [choice(temperature, 0.9, seed) for seed in (1, 2, 3)]
    drawn = sample(logits, rows)
    alone = [
        sample(LOGITS[None], [choice(temperature, 0.9, 1)])[0],
        None,
        sample(LOGITS.flip(0)[None], [choice(temperature, 0.9, 3)])[0],
    ]
    assert drawn == alone


def test_a_row_that_allows_nothing_gives_none() -> None:
    logits = torch.stack([torch.full_like(LOGITS, -math.inf), LOGITS])
    assert sample(logits, [choice(), choice(0.0)]) == [None, 1]


def test_a_token_of_no_weight_is_never_drawn() -> None:
    logits = torch.tensor([-math.inf, 0.0, -math.inf, 0.0, -math.inf])
    drawn = sample(logits.expand(500, -1), [choice(seed=4)] * 500)
    assert set(drawn) == {1, 3}


# ---------------------------------------------------------------- repetition penalty


@pytest.mark.shows("chat-parameters.10")
def test_the_penalty_divides_positive_and_multiplies_negative_logits_of_seen_tokens() -> None:
    logits = torch.tensor([[2.0, -2.0, 3.0, -1.0, 0.0]])
    seen = torch.tensor([True, True, False, False, True])
    rows = [Sampler(0.0, 1.0, 2.0, generator(0, 0), seen)]
    found = sampling._penalised(logits, rows)
    torch.testing.assert_close(found, torch.tensor([[1.0, -4.0, 3.0, -1.0, 0.0]]))


def test_the_penalty_moves_the_choice_of_its_row_only() -> None:
    logits = torch.tensor([[2.0, 1.9, 0.0], [2.0, 1.9, 0.0]])
    seen = torch.tensor([True, False, False])
    rows = [choice(0.0), Sampler(0.0, 1.0, 1.5, generator(0, 0), seen)]
    assert sample(logits, rows) == [0, 1]


def test_the_penalty_is_applied_before_the_temperature() -> None:
    seen = torch.zeros(LOGITS.numel(), dtype=torch.bool)
    seen[1] = True
    row = Sampler(0.8, 0.9, 1.4, generator(6, 0), seen)
    drawn = sample(LOGITS.expand(DRAWS, -1), [row] * DRAWS)
    penalised = LOGITS.clone()
    penalised[1] /= 1.4
    counts = torch.tensor(drawn).bincount(minlength=LOGITS.numel()).double()
    assert_follows(counts, nucleus(penalised, 0.8, 0.9))


# ---------------------------------------------------------------- seeds


def test_random_numbers_are_those_of_the_generator_one_by_one() -> None:
    one, source = choice(seed=3), generator(3, 0)
    for _ in range(40):
        assert one.uniform() == torch.rand((), generator=source).item()


def test_a_seed_and_a_choice_fix_the_draws() -> None:
    def draws(seed: int | None, number: int) -> list[float]:
        return torch.rand(8, generator=generator(seed, number)).tolist()

    assert draws(7, 0) == draws(7, 0)
    assert draws(7, 2) == draws(7, 2)
    every = [draws(7, 0), draws(7, 1), draws(7, 2), draws(8, 0), draws(8, 1), draws(None, 0)]
    assert len({tuple(d) for d in every}) == len(every)


@pytest.mark.parametrize("seed", [0, 2**31, 2**53, 2**63 - 1, -1, -(2**63)])
def test_every_seed_of_64_bits_is_taken(seed: int) -> None:
    for number in (0, 1):
        sample(LOGITS[None], [Sampler(1.0, 0.9, 1.0, generator(seed, number))])
