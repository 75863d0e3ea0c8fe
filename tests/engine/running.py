"""A model with its running batch, stepped by hand, and the slow truths that it is compared with."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

import torch
from torch import Tensor

from steerserve.engine.messages import (
    Follow,
    Generate,
    Piece,
    Plan,
    Refused,
    Sampling,
    Text,
)
from steerserve.engine.worker.admission import rows_of
from steerserve.engine.worker.batch import Batch, Outcome, Row
from steerserve.engine.worker.checkpoint import Checkpoint
from steerserve.engine.worker.hooks import Steering
from steerserve.engine.worker.sae import sites
from steerserve.engine.worker.sae.canonical import Sae
from steerserve.errors import Refusal

Result = TypeVar("Result")

STORY = (
    "One morning Anna walked down to the harbour with her brother, and the boats were coming home; the fishermen "
    "carried baskets up the stone steps, and she asked: did you sleep well?"
)


def open_checkpoint(path: Path) -> Checkpoint:
    with torch.inference_mode():
        return Checkpoint(
            path, quantization="FP16", trust_remote_code=False, report=lambda *_: None
        )


@dataclass
class Answer:
    """What came of one choice."""

    row: Row
    text: str = ""
    finish: str | None = None
    pieces: list[Piece] = field(default_factory=list)

    @property
    def tokens(self) -> list[int]:
        return list(self.row.out)


class Bench:
    """One model, its steering and its running batch, stepped by hand."""

    def __init__(self, model: Checkpoint, kv_tokens: int = 4096) -> None:
        self.model = model
        self.kv_tokens = kv_tokens
        self.steering = Steering(model.dtype, model.device)
        self.batch = Batch(model, self.steering, kv_tokens)
        self.answers: dict[tuple[int, int], Answer] = {}
        self.refused: dict[int, Refused] = {}

    def ask(
        self,
        request: int,
        prompts: str | list[str],
        *,
        n: int = 1,
        plan: Plan | None = None,
        **sampling: Any,
    ) -> Answer:
        """Add a request, greedy unless told otherwise; the answer of its first choice."""
        wanted = Sampling(**{"temperature": 0.0, "max_tokens": 16, **sampling})
        texts = [prompts] if isinstance(prompts, str) else prompts
        command = Generate(request, [Text(t) for t in texts], n, wanted, plan or Follow())
        context = min(self.model.model_max_context, self.kv_tokens)
        rows = rows_of(command, self.model, context, self.kv_tokens)
        self.answers.update({(request, row.choice): Answer(row) for row in rows})
        self.batch.add(rows, is_seeded=wanted.seed is not None)
        return self.answers[request, 0]

    def step(self, times: int = 1) -> list[Outcome]:
        """Steps of the batch, each checked against the bound on its memory."""
        outcomes: list[Outcome] = []
        for _ in range(times):
            new = self.batch.step()
            assert self.held_tokens <= self.kv_tokens
            for outcome in new:
                self._note(outcome)
            outcomes += new
        return outcomes

    def run(self) -> Bench:
        while not self.batch.is_idle:
            self.step()
        return self

    def texts(self, request: int) -> list[str]:
        return [a.text for (number, _), a in sorted(self.answers.items()) if number == request]

    @property
    def held_tokens(self) -> int:
        """Tokens that the caches of all groups hold, counted in their tensors where those exist."""
        total = 0
        for group in self.batch._groups():
            cache = group.cache
            sizes = {t.shape[0] * t.shape[2] for t in cache._keys.values()}
            total += max(sizes, default=cache.rows * cache.length)
        return total

    @property
    def held_bytes(self) -> int:
        return sum(
            t.numel() * t.element_size()
            for group in self.batch._groups()
            for t in [*group.cache._keys.values(), *group.cache._values.values()]
        )

    def live_rows(self, request: int) -> list[Row]:
        """The rows a request has anywhere in the batch."""
        waiting = [row for rows, _ in self.batch._waiting for row in rows]
        held = [row for group in self.batch._groups() for row in group.all_rows()]
        return [row for row in [*waiting, *held] if row.request == request]

    def _note(self, outcome: Outcome) -> None:
        if isinstance(outcome, Refused):
            self.refused[outcome.id] = outcome
            return
        answer = self.answers[outcome.id, outcome.choice]
        assert answer.finish is None, "a piece after the last one"
        answer.pieces.append(outcome)
        answer.text += outcome.text
        answer.finish = outcome.finish


def alone(model: Checkpoint, prompt: str, **fields: Any) -> Answer:
    """The answer to a request that has the whole engine to itself, without any SAE."""
    bench = Bench(model)
    answer = bench.ask(1, prompt, **fields)
    bench.run()
    return answer


def generated(model: Checkpoint, prompt: str, max_tokens: int) -> list[int]:
    """The tokens that transformers' own greedy `generate` gives."""
    ids = torch.tensor([model.encode(prompt, special=True)])
    out = model.model.generate(
        ids,
        attention_mask=torch.ones_like(ids),
        do_sample=False,
        max_new_tokens=max_tokens,
        pad_token_id=0,
    )
    return out[0, ids.shape[1] :].tolist()


def recomputed(model: Checkpoint, prompt: str, max_tokens: int) -> list[int]:
    """Greedy tokens with the whole text passed through the model for every token: no cache at all."""
    ids = model.encode(prompt, special=True)
    out: list[int] = []
    for _ in range(max_tokens):
        logits = model.model(input_ids=torch.tensor([[*ids, *out]]), use_cache=False).logits
        out.append(int(logits[0, -1].argmax()))
        if out[-1] in model.end_tokens:
            break
    return out


def random_sae(d_in: int, d_sae: int = 48, seed: int = 0) -> Sae:
    source = torch.Generator().manual_seed(seed)

    def draw(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=source)

    return Sae(draw(d_in, d_sae), draw(d_sae), draw(d_sae, d_in), draw(d_in), activation="relu")


def site_of(model: Checkpoint, layer: int = 0, site: str = sites.RESID_POST) -> sites.Site:
    return sites.find(model.model, model.layers, site, layer)


@contextmanager
def hooked(site: sites.Site, edit: Callable[[Tensor], Tensor | None]) -> Iterator[None]:
    """A hook of the test's own, independent of the engine's, at the same place."""

    def after(_: Any, __: Any, output: Any) -> Any:
        first = output[0] if isinstance(output, tuple) else output
        edited = edit(first)
        if edited is None:
            return None
        return (edited, *output[1:]) if isinstance(output, tuple) else edited

    def before(_: Any, args: Any, kwargs: Any) -> Any:
        edited = edit(args[0] if args else kwargs["hidden_states"])
        if edited is None:
            return None
        if args:
            return (edited, *args[1:]), kwargs
        return args, {**kwargs, "hidden_states": edited}

    handle = (
        site.module.register_forward_pre_hook(before, with_kwargs=True)
        if site.is_input
        else site.module.register_forward_hook(after)
    )
    try:
        yield
    finally:
        handle.remove()


def attempt(call: Callable[[], Result]) -> tuple[Result | None, str | None]:
    """What the call returned, or the code it was refused with."""
    try:
        return call(), None
    except Refusal as refusal:
        return None, refusal.code


def words(count: int, start: int = 0) -> str:
    """A piece of the story, `count` characters long."""
    long = STORY * (1 + (start + count) // len(STORY))
    return long[start : start + count]
