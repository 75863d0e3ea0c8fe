"""The truth about a real model: transformers' own code over the same weights in float32, and beside it in bfloat16, with
hooks of the tests' own.

A processor without instructions for bfloat16 takes minutes for a pass in it. Here products and attention of bfloat16
values are computed in float32 and rounded once, which is what such instructions give, so the comparison is the stricter.
"""

from __future__ import annotations

import itertools
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.overrides import TorchFunctionMode
from transformers import AutoModelForCausalLM, AutoTokenizer

Change = Callable[[Tensor], Tensor]
"""What a hook makes of the values [T, width] of a site, in their own dtype."""

HALF = torch.bfloat16
_SLICE = 64
"""The positions whose logits are held at once."""

_SANDWICH = "gemma3_text"
"""The kind of model that normalises what attention and MLP give before it is added to the stream."""


class _RoundedOnce(TorchFunctionMode):
    """Products and attention of bfloat16 values, in float32 and rounded once."""

    def __torch_function__(
        self,
        func: Any,
        types: Sequence[type],
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        kwargs = kwargs or {}
        products = (torch.matmul, functional.scaled_dot_product_attention)
        if func in products and args[0].dtype == HALF:
            kwargs = {name: _wide(value) for name, value in kwargs.items()}
            return func(*map(_wide, args), **kwargs).to(HALF)
        return func(*args, **kwargs)


def _wide(value: Any) -> Any:
    return value.float() if isinstance(value, Tensor) and value.dtype == HALF else value


KEPT_PASSES = 16
"""The passes whose states are remembered: many requests are compared over one text."""


class Pass:
    """One of the two models: its passes over one text."""

    def __init__(self, model: Any) -> None:
        self.model = model
        self._kept: OrderedDict[tuple[int, ...], Tensor] = OrderedDict()
        self.layers: nn.ModuleList = model.model.layers

    @property
    def dtype(self) -> torch.dtype:
        kind: torch.dtype = self.model.dtype
        return kind

    def states(self, ids: Sequence[int], changes: Mapping[tuple[str, int], Change] = {}) -> Tensor:
        """The last hidden states [T, width] after the final norm, with changes by site and layer."""
        text = tuple(ids)
        if changes or text not in self._kept:
            states = self._computed(text, changes)
            if changes:
                return states
            self._kept[text] = states
        self._kept.move_to_end(text)
        while len(self._kept) > KEPT_PASSES:
            self._kept.popitem(last=False)
        return self._kept[text]

    def forget(self) -> None:
        """Forget the passes of other weights."""
        self._kept.clear()

    @torch.inference_mode()
    def _computed(self, ids: Sequence[int], changes: Mapping[tuple[str, int], Change]) -> Tensor:
        with ExitStack() as stack:
            for (site, layer), change in changes.items():
                stack.enter_context(self._changed(site, layer, change))
            stack.enter_context(_RoundedOnce())
            states: Tensor = self.model.model(torch.tensor([list(ids)])).last_hidden_state[0]
        return states

    @torch.inference_mode()
    def logits(self, states: Tensor) -> Iterator[tuple[slice, Tensor]]:
        """The logits of states [n, width] as float32 [some, vocabulary], some positions at a time."""
        for first in range(0, len(states), _SLICE):
            part = slice(first, min(first + _SLICE, len(states)))
            yield part, self.model.lm_head(states[part]).float()

    def picked(self, states: Tensor, tokens: Tensor) -> Tensor:
        """The log-probabilities [n, k] of tokens [n, k] after each state."""
        found = torch.empty(tokens.shape)
        for part, logits in self.logits(states):
            whole = torch.logsumexp(logits, -1, keepdim=True)
            found[part] = logits.gather(1, tokens[part]) - whole
        return found

    @torch.inference_mode()
    def among(self, states: Tensor, tokens: Tensor) -> Tensor:
        """The logits [n, k] of tokens [n, k] after each state, less their mean. These are log-probabilities but for a
        number that all tokens share, and cost little where the vocabulary is large."""
        rows = self.model.lm_head.weight[tokens].float()
        logits = torch.einsum("nkd,nd->nk", rows, states.float()).to(self.dtype).float()
        return logits - logits.mean(-1, keepdim=True)

    def values(
        self,
        ids: Sequence[int],
        places: Sequence[tuple[str, int]],
        changes: Mapping[tuple[str, int], Change] = {},
    ) -> dict[tuple[str, int], Tensor]:
        """The values [T, width] of sites in float32, before changes at them."""
        seen: dict[tuple[str, int], Tensor] = {}

        def keeping(place: tuple[str, int]) -> Change:
            def keep(values: Tensor) -> Tensor:
                seen[place] = values.float().clone()
                change = changes.get(place)
                return values if change is None else change(values)

            return keep

        both = {place: keeping(place) for place in (*places, *changes)}
        self.states(ids, both)
        return seen

    @contextmanager
    def _changed(self, site: str, layer: int, change: Change) -> Iterator[None]:
        """Change the values of a site while open."""
        block: Any = self.layers[layer]
        is_sandwich = self.model.config.model_type == _SANDWICH
        attention = block.post_attention_layernorm if is_sandwich else block.self_attn
        mlp = block.post_feedforward_layernorm if is_sandwich else block.mlp
        before, after = self._inputs, self._outputs
        place: dict[str, tuple[Callable[[nn.Module, Change], Any], nn.Module]] = {
            "embed": (after, self.model.model.embed_tokens),
            "resid_pre": (before, block),
            "hook_z": (before, block.self_attn.o_proj),
            "attn_raw": (after, block.self_attn),
            "attn_out": (after, attention),
            "mlp_in": (before, block.mlp),
            "mlp_neurons": (before, block.mlp.down_proj),
            "mlp_raw": (after, block.mlp),
            "mlp_out": (after, mlp),
            "resid_post": (after, block),
        }
        held: list[Tensor] = []

        def keep(stream: Tensor) -> Tensor:
            held[:] = [stream]
            return stream

        def between(added: Tensor) -> Tensor:
            middle = held[0] + added
            return added + (change(middle) - middle)

        hooks = (
            [before(block, keep), after(attention, between)]
            if site == "resid_mid"
            else [place[site][0](place[site][1], change)]
        )
        try:
            yield
        finally:
            for hook in hooks:
                hook.remove()

    @staticmethod
    def _inputs(module: nn.Module, change: Change) -> Any:
        def hook(_: nn.Module, given: tuple[Any, ...], named: dict[str, Any]) -> Any:
            if given:
                return (change(given[0][0])[None], *given[1:]), named
            return given, named | {"hidden_states": change(named["hidden_states"][0])[None]}

        return module.register_forward_pre_hook(hook, with_kwargs=True)

    @staticmethod
    def _outputs(module: nn.Module, change: Change) -> Any:
        def hook(_: nn.Module, given: Any, out: Any) -> Any:
            if isinstance(out, tuple):
                return (change(out[0][0])[None], *out[1:])
            return change(out[0])[None]

        return module.register_forward_hook(hook)


class Reference:
    """A real model in float32 (`true`) and in bfloat16 (`half`), with its tokenizer."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.tokenizer: Any = AutoTokenizer.from_pretrained(folder)
        self.true = Pass(AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval())
        self.half = Pass(AutoModelForCausalLM.from_pretrained(folder, dtype=HALF).eval())
        self._share_products()

    def _share_products(self) -> None:
        """Let the linear layers in bfloat16 multiply by the weights in float32, which are the same numbers."""
        wide = dict(self.true.model.named_modules())
        for name, layer in self.half.model.named_modules():
            if isinstance(layer, nn.Linear):
                layer.forward = _linear(wide[name])

    @property
    def layers(self) -> int:
        return len(self.true.layers)

    @property
    def passes(self) -> tuple[Pass, Pass]:
        return self.true, self.half

    @contextmanager
    def weights(self, name: Callable[[str], bool], change: Change) -> Iterator[None]:
        """While open, both have other weights in the linear layers of these names: what `change` makes of theirs."""
        layers = [
            (label, layer)
            for label, layer in self.true.model.named_modules()
            if isinstance(layer, nn.Linear) and name(label)
        ]
        before = [layer.weight for _, layer in layers]
        try:
            for _, layer in layers:
                made = change(layer.weight.detach())
                layer.weight = nn.Parameter(made, requires_grad=False)
            self._forget()
            yield
        finally:
            for (_, layer), weight in zip(layers, before, strict=True):
                layer.weight = weight
            self._forget()

    def _forget(self) -> None:
        for one in self.passes:
            one.forget()


def _linear(wide: nn.Module) -> Change:
    def multiply(rows: Tensor) -> Tensor:
        made: Tensor = wide(rows.float())
        return made.to(rows.dtype)

    return multiply


# ------------------------------------------------------------------ edits


@dataclass(frozen=True, slots=True)
class SmallSae:
    """A ReLU SAE: W_enc [width, features], b_enc [features], W_dec [features, width], b_dec [width]."""

    encoder: Tensor
    bias: Tensor
    decoder: Tensor
    centre: Tensor

    @classmethod
    def of_values(cls, values: Tensor, features: int, seed: int = 0) -> SmallSae:
        """Features are directions in which some of these values [n, width] lie from their mean, each of them active
        for one value in eight."""
        source = torch.Generator().manual_seed(seed)
        centre = values.mean(0)
        chosen = torch.randperm(len(values), generator=source)[:features]
        rows = functional.normalize(values[chosen] - centre, dim=-1)
        along = values @ rows.T
        bias = -torch.quantile(along, 7 / 8, dim=0)
        return cls(rows.T.contiguous(), bias, rows, torch.zeros_like(centre))

    def encode(self, values: Tensor) -> Tensor:
        """The activations [T, features] of values [T, width]."""
        return torch.relu(values.float() @ self.encoder + self.bias)


def rounded(values: Tensor, made: Tensor) -> Tensor:
    """An edit that was computed in float32, in the dtype of the values."""
    return made.to(values.dtype)


def chained(changes: Sequence[Change]) -> Change:
    """All changes, one after the other."""

    def change(values: Tensor) -> Tensor:
        for each in changes:
            values = each(values)
        return values

    return change


def grouped(
    changes: Sequence[tuple[tuple[str, int], Change]],
) -> dict[tuple[str, int], Change]:
    """Changes by their places, in their order at each."""
    ordered = sorted(changes, key=lambda pair: pair[0])
    return {
        place: chained([change for _, change in pairs])
        for place, pairs in itertools.groupby(ordered, key=lambda pair: pair[0])
    }
