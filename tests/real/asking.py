"""Questions to a service that has a real model loaded, and what its answers say as tensors."""

from __future__ import annotations

import base64
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from tools.real.models import RealModel
from torch import Tensor

from tests.real.figures import spread_off
from tests.real.reference import Pass, Reference
from tests.service import Running, add_model

TOP = 20
GGUF = "gguf"


@dataclass(frozen=True, slots=True)
class Scores:
    """What the service says of positions of a text: the log-probabilities [n, k] of tokens [n, k] after the tokens up to
    `places` [n]."""

    places: list[int]
    tokens: Tensor
    found: Tensor

    def off(self, reference: Reference, states: Sequence[Tensor]) -> tuple[Tensor, Tensor]:
        """The distances [n] from float32 of the service and of the library, by the last hidden states [T, width] of
        both passes."""
        true, half = (
            each.picked(state[self.places], self.tokens)
            for each, state in zip(reference.passes, states, strict=True)
        )
        return spread_off(self.found, true), spread_off(half, true)

    def off_among(self, reference: Reference, states: Sequence[Tensor]) -> tuple[Tensor, Tensor]:
        """As `off`, for the differences between these tokens."""
        true, half = (
            each.among(state[self.places], self.tokens)
            for each, state in zip(reference.passes, states, strict=True)
        )
        found = self.found - self.found.mean(-1, keepdim=True)
        return spread_off(found, true), spread_off(half, true)


class RealService:
    """A running service, and the form of a real model that it has loaded."""

    def __init__(self, live: Running) -> None:
        self.live = live
        self.name = ""
        self._ids: dict[str, int] = {}

    def load(self, real: RealModel, form: str) -> None:
        """Have the model loaded in this form: `FP16` for its own bfloat16, `Q8`, `Q4`, or `GGUF`."""
        name = f"{real.name}-{form}"
        if name == self.name:
            return
        if self.name:
            self.live.data("POST", f"/api/models/{self._ids[self.name]}/unload")
        if name not in self._ids:
            is_file = form == GGUF
            path = real.gguf if is_file else real.checkpoint
            fields = {} if is_file else {"quantization": form}
            self._ids[name] = add_model(self.live, path, name, **fields)
        self.live.data("POST", f"/api/models/{self._ids[name]}/load?wait=true")
        self.name = name

    def complete(self, prompt: Any, **fields: Any) -> dict[str, Any]:
        """A text completion, greedy unless the fields say otherwise."""
        body = {"model": self.name, "prompt": prompt, "temperature": 0}
        made: dict[str, Any] = self.live.post("/v1/completions", body | fields).json()
        return made

    def echo(self, ids: list[int], top: int = TOP, **fields: Any) -> Scores:
        """The log-probabilities of the tokens of a text and of the `top` most probable ones at each place."""
        answer = self.complete(
            ids, max_tokens=0, echo=True, logprobs=top, return_tokens_as_token_ids=True, **fields
        )
        found = answer["choices"][0]["logprobs"]["top_logprobs"][1:]
        return scores(list(range(len(ids) - 1)), found)

    def written(
        self, prompt: list[int], count: int, **fields: Any
    ) -> tuple[list[int], Scores, dict[str, Any]]:
        """The tokens of a greedy answer, their log-probabilities by place in prompt and answer, and the answer."""
        answer = self.complete(prompt, max_tokens=count, return_logprobs={"top": TOP}, **fields)
        entries = list(answer["service"]["logprobs"])
        tokens = [each["token_id"] for each in entries]
        places = [len(prompt) - 1 + at for at in range(len(tokens))]
        found = [
            {f":{top['token_id']}": top["logprob"] for top in each["steered"]["top"]}
            for each in entries
        ]
        return tokens, scores(places, found), answer


def scores(places: list[int], found: list[dict[str, float]]) -> Scores:
    """Log-probabilities as tensors. Where a place lists fewer tokens than another, one of its own is repeated."""
    width = max(map(len, found))
    rows = [list(each.items()) for each in found]
    rows = [row + row[:1] * (width - len(row)) for row in rows]
    tokens = [[int(name.rpartition(":")[2]) for name, _ in row] for row in rows]
    return Scores(
        places, torch.tensor(tokens), torch.tensor([[lp for _, lp in row] for row in rows])
    )


def states(reference: Reference, ids: Sequence[int], changes: Any = {}) -> list[Tensor]:  # noqa: B006
    """The last hidden states [T, width] in float32 and in bfloat16. Changes are by site and layer."""
    return [each.states(ids, changes) for each in reference.passes]


def numbers(values: Tensor) -> str:
    """A direction as requests have it."""
    return base64.b64encode(values.contiguous().numpy().astype("<f4").tobytes()).decode()


__all__ = ["GGUF", "Pass", "RealService", "Scores", "numbers", "scores", "states"]
