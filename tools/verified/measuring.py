"""One row of the table: a model as the engine serves it, beside transformers in float32 and in the model's precision.

Distances are mean differences of the log-probabilities of tokens from those of float32, in nats. The engine runs in
this process, through its running batch. Its steering is compared with hooks that this module sets on transformers'
model.
"""

from __future__ import annotations

import gc
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from tests import asking
from tests.worker.running import Bench, Counted, hooked, open_checkpoint, random_sae
from torch import Tensor, nn
from transformers import AutoConfig, AutoModel, AutoModelForCausalLM

from steerserve.errors import Refusal
from steerserve.messages import Echo, Overlay, Tokens
from steerserve.parts.logprobs.form import Logprobs
from steerserve.rules.saes.sites import (
    ATTN_OUT,
    EMBED,
    MLP_OUT,
    RESID_MID,
    RESID_POST,
    RESID_PRE,
    SITES,
)
from steerserve.worker.model import precision
from steerserve.worker.model.encoder import Encoder
from steerserve.worker.sae import sites

READ = 160
"""Tokens that are read, as a prompt whose tokens are scored."""
STEERED = 80
"""Tokens that are read for each site."""
WRITTEN = 24
PROMPT = 300
"""Tokens of a prompt long enough that its keys and values are kept."""
MORE = 20
"""Tokens that the next turn adds."""
KEY, FEATURE = "verified", 3
SHARE = 0.5
"""How long what is added at a site is, beside the value at it."""
ATTEMPTS = 8
"""Rows of which one is the seeded row that is compared."""

_SAME = 1e-4
_CACHES = ("past_key_values", "cache_params")
"""How models call what they keep between steps."""


@dataclass(frozen=True)
class Library:
    """A model of transformers."""

    model: Any

    def logits(self, ids: Sequence[int]) -> Tensor:
        made: Tensor = self.model(input_ids=torch.tensor([list(ids)]), use_cache=False).logits
        return made[0]

    def read(self, ids: Sequence[int]) -> Tensor:
        """The log-probability of each token but the first, after those before it."""
        return _picked(self.logits(ids)[:-1], ids[1:])

    def written(self, prompt: Sequence[int], answer: Sequence[int]) -> Tensor:
        """The log-probabilities of an answer, in cached steps as `generate` makes them."""
        made = self.model(input_ids=torch.tensor([list(prompt)]), use_cache=True)
        logits = [made.logits[0, -1]]
        for token in answer[:-1]:
            kept = next(name for name in _CACHES if name in made)
            step = torch.tensor([[token]])
            made = self.model(input_ids=step, use_cache=True, **{kept: made[kept]})
            logits.append(made.logits[0, -1])
        return _picked(torch.stack(logits), answer)


def _picked(logits: Tensor, tokens: Sequence[int]) -> Tensor:
    logits = logits.float()
    chosen = logits.gather(1, torch.tensor(list(tokens))[:, None])[:, 0]
    return chosen - logits.logsumexp(1)


def _distance(found: Tensor, true: Tensor) -> float:
    return float((found - true).abs().mean())


def _both(ours: Tensor, library: Tensor, true: Tensor) -> dict[str, float]:
    return {"ours": _distance(ours, true), "library": _distance(library, true)}


def open_libraries(folder: Path, quantization: str) -> tuple[Library, Library]:
    """The model in float32, and in the precision in which it is served. The float32 model of 8-bit weights has the
    numbers that their codes mean."""
    if quantization == "FP16":
        kinds = (torch.float32, torch.bfloat16)
        true, own = (AutoModelForCausalLM.from_pretrained(folder, dtype=kind) for kind in kinds)
    else:
        true, own = _quantized(folder, quantization), _quantized(folder, quantization)
        for name, module in list(true.named_modules()):
            if type(module).__name__ == "Linear8bitLt":
                parent = true.get_submodule(name.rpartition(".")[0])
                setattr(parent, name.rpartition(".")[2], _plain(module))
        _widen(true)
    return Library(true.eval()), Library(own.eval())


def _quantized(folder: Path, quantization: str) -> Any:
    config = AutoConfig.from_pretrained(folder)
    held = precision.held(quantization, config, [torch.device("cpu")])
    options = precision.load_options(held, AutoModelForCausalLM, config, trust_remote_code=False)
    return AutoModelForCausalLM.from_pretrained(
        folder, dtype=getattr(torch, held.dtype), device_map={"": "cpu"}, **options
    )


def _plain(layer: Any) -> nn.Linear:
    """A layer of bitsandbytes with the numbers of its codes: code * scale of the row / 127."""
    weight = layer.weight
    numbers = weight.data.float() * weight.SCB.float()[:, None] / 127
    plain = nn.Linear(*reversed(numbers.shape), bias=layer.bias is not None)
    plain.weight.data = numbers
    if layer.bias is not None:
        plain.bias.data = layer.bias.data.float()
    return plain


def _widen(model: Any) -> None:
    """Put a model into float32. The library refuses to convert a model that it knows as quantized."""
    for tensor in (*model.parameters(), *model.buffers()):
        if tensor.dtype in (torch.bfloat16, torch.float16):
            tensor.data = tensor.data.float()


def measure_model(folder: Path, text: str, quantization: str = "FP16") -> dict[str, Any]:
    """What is verified of a language model, over tokens of `text`."""
    with torch.inference_mode():
        model = open_checkpoint(folder, quantization)
        true, own = open_libraries(folder, quantization)
        ids = _tokens(model.encode(text, special=True), PROMPT + MORE)
        found: dict[str, Any] = {
            "architecture": type(model.model).__name__,
            "parameters": model.parameters,
            "precision": quantization if model.held.quantizes else str(model.dtype)[6:],
            "layers": model.layers,
            "row_steps": {
                "are_batched": model.row_steps.are_batched,
                "reason": model.row_steps.reason,
            },
            "compiled": {
                "modules": model.functions.modules,
                "layers": model.functions.layers,
                "refused": [each.module for each in model.functions.refused],
            },
            "warnings": model.warnings,
            "read": _read(model, true, own, ids[:READ]),
        }
        found |= _turns(model, true, own, ids)
        found["seeds"] = _are_seeds_kept(model, ids)
        found["sites"], found["identities"] = _sites(model, true, own, ids[:STEERED])
    del model, true, own
    gc.collect()
    return found


def _tokens(ids: list[int], count: int) -> list[int]:
    """The first tokens of a text, which is repeated where it is too short. They begin with the token 0 of the small
    tokenizer, `<bos>`, at which massive activations are."""
    whole = ids * (count // len(ids) + 1)
    return whole[:count]


def _scored(bench: Bench, request: int, ids: list[int], **fields: Any) -> Tensor:
    bench.score(request, [Tokens(ids)], echo=Echo(0, 65_536), top=1, **fields)
    bench.run()
    assert not bench.refused, bench.refused
    return torch.tensor([each.logprob for each in bench.scores[request, 0].prompt[1:]])


def _read(model: Any, true: Library, own: Library, ids: list[int]) -> dict[str, Any]:
    found = _both(_scored(Bench(model), 1, ids), own.read(ids), true.read(ids))
    return {**found, "tokens": len(ids) - 1}


def _turns(model: Any, true: Library, own: Library, ids: list[int]) -> dict[str, Any]:
    """A prompt with an answer, and a next turn, whose beginning is kept where the architecture allows it."""
    bench = Counted(model)
    asked: dict[str, Any] = {"logprobs": Logprobs(1, True, False, 999), "max_tokens": WRITTEN}
    first, _ = bench.turn(1, ids[:PROMPT], **asked)
    following = [*ids[:PROMPT], *first.tokens, *ids[PROMPT:]]
    second, given = bench.turn(2, following, **asked)
    found: dict[str, Any] = {}
    for name, prompt, answer in (
        ("written", ids[:PROMPT], first),
        ("kept", following, second),
    ):
        written: Any = asking.told(answer.pieces[-1], "logprobs")
        ours = torch.tensor([each.steered.logprob for each in written])
        tokens = [each.token for each in written]
        whole = true.logits([*prompt, *tokens])[len(prompt) - 1 : -1]
        found[name] = {
            **_both(ours, own.written(prompt, tokens), _picked(whole, tokens)),
            "tokens": len(tokens),
        }
    found["kept"]["reused"] = len(following) - given if model.row_steps.are_batched else 0
    return found


def _are_seeds_kept(model: Any, ids: list[int]) -> bool:
    """Whether a seeded request has the same tokens alone and beside others."""
    asked: dict[str, Any] = {"temperature": 1.0, "max_tokens": WRITTEN}
    alone = Bench(model)
    answer = alone.ask(1, "", ids=ids[:40], seed=7, **asked)
    alone.run()
    beside = Bench(model)
    for number in range(ATTEMPTS - 1):
        seed: dict[str, Any] = {"seed": number} if number % 2 else {}
        beside.ask(number + 2, "", ids=ids[number : 20 + 7 * number], **seed, **asked)
        beside.step()
    among = beside.ask(1, "", ids=ids[:40], seed=7, **asked)
    beside.run()
    return among.tokens == answer.tokens


def _sites(
    model: Any, true: Library, own: Library, ids: list[int]
) -> tuple[dict[str, dict[str, float]], float]:
    """The distances of scores with a direction added, by site, with what the direction changes (`effect`); and the
    largest difference between the hooked values of transformers' float32 model and what these are by definition: the
    library's hidden states, and the sum of what attention and MLP add."""
    found: dict[str, dict[str, float]] = {}
    values: dict[tuple[str, int], Tensor] = {}
    unsteered = true.read(ids)
    middle = model.layers // 2
    for site, width in sites.widths(model.model, model.layers).items():
        if site not in SITES:
            continue
        layer = _layer_with(model, site, middle)
        sae = random_sae(width)
        places = [sites.find(each.model, model.layers, site, layer) for each in (true, own)]
        factor = _factor(model, site)
        value = values[site, layer] = factor * _value(true, places[0], ids)
        direction = sae.W_dec[FEATURE]
        strength = float(SHARE * value.norm(dim=-1).median() / direction.norm())
        steered = []
        for library, place in zip((true, own), places, strict=True):
            with hooked(place, _adding(strength / factor * direction)):
                steered.append(library.read(ids))
        bench = Bench(model)
        with bench.attached(KEY, sae, layer, site):
            plan = Overlay(None, {KEY: {FEATURE: strength}})
            ours = _scored(bench, 1, ids, plan=plan)
        found[site] = {
            **_both(ours, steered[1], steered[0]),
            "effect": _distance(steered[0], unsteered),
        }
    return found, _identities(true, values, ids)


def _factor(model: Any, site: str) -> float:
    """What Granite multiplies the outputs of its modules by before it adds them to the stream."""
    multiplied = site in (ATTN_OUT, MLP_OUT, RESID_MID)
    return float(getattr(model.config, "residual_multiplier", 1.0)) if multiplied else 1.0


def _layer_with(model: Any, site: str, middle: int) -> int:
    if site == EMBED:
        return 0
    for layer in [*range(middle, model.layers), *range(middle)]:
        try:
            sites.find(model.model, model.layers, site, layer)
        except Refusal:
            continue
        return layer
    raise AssertionError(site)


def _adding(direction: Tensor) -> Callable[[Tensor], Tensor]:
    return lambda value: (value.float() + direction).to(value.dtype)


def _value(library: Library, place: sites.Site, ids: list[int]) -> Tensor:
    kept: list[Tensor] = []

    def keep(value: Tensor) -> None:
        kept.append(value.float().flatten(0, -2).clone())

    with hooked(place, keep):
        library.logits(ids)
    return kept[0]


def _identities(true: Library, values: dict[tuple[str, int], Tensor], ids: list[int]) -> float:
    hidden = true.model(
        input_ids=torch.tensor([ids]), use_cache=False, output_hidden_states=True
    ).hidden_states
    off = [0.0]
    # Mamba lists the streams after its layers, and not the one before the first
    begins = _relative(hidden[0][0], values[EMBED, 0]) < _SAME
    for (site, layer), value in values.items():
        if not begins:
            break
        if site == RESID_PRE:
            off.append(_relative(value, hidden[layer][0]))
        if site == RESID_POST and layer + 2 < len(hidden):
            off.append(_relative(value, hidden[layer + 1][0]))
    by_layer: dict[int, dict[str, Tensor]] = {layer: {} for _, layer in values}
    for (site, layer), value in values.items():
        by_layer[layer][site] = value
    for at in by_layer.values():
        if {RESID_PRE, ATTN_OUT, MLP_OUT, RESID_POST} <= at.keys():
            off.append(_relative(at[RESID_PRE] + at[ATTN_OUT] + at[MLP_OUT], at[RESID_POST]))
    return max(off)


def _relative(found: Tensor, true: Tensor) -> float:
    return float(((found - true).norm(dim=-1) / true.norm(dim=-1)).max())


def measure_embedder(folder: Path, texts: Sequence[str]) -> dict[str, Any]:
    """The vectors of an embedding-only model: their distance from those of float32, as a part of their length."""
    with torch.inference_mode():
        model = Encoder(
            folder, quantization="FP16", trust_remote_code=False, report=lambda *_: None
        )
        rows = [model.encode(text, special=True)[: model.model_max_context] for text in texts]
        ours = model.pooled(rows)
        kinds = (torch.float32, torch.bfloat16)
        true, own = (_pooled(AutoModel.from_pretrained(folder, dtype=kind), rows) for kind in kinds)
        alone = torch.cat([model.pooled([row]) for row in rows])
    return {
        "architecture": type(model.model).__name__,
        "parameters": model.parameters,
        "precision": str(model.dtype)[6:],
        "layers": model.layers,
        "vectors": {
            "ours": float(((ours - true).norm(dim=-1) / true.norm(dim=-1)).mean()),
            "library": float(((own - true).norm(dim=-1) / true.norm(dim=-1)).mean()),
            "beside_alone": _relative(ours, alone),
            "texts": len(rows),
        },
    }


def _pooled(model: Any, rows: Sequence[Sequence[int]]) -> Tensor:
    made = [model.eval()(input_ids=torch.tensor([list(row)])) for row in rows]
    return torch.stack([each.last_hidden_state[0].float().mean(0) for each in made])
