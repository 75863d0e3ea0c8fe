"""Sparse autoencoders of the demo: training, figures and the SAELens folder layout.

There are two kinds. `topk` keeps the k largest pre-activations of each token (Gao et al. 2024). `jumprelu` is trained
with batch top-k (Bussmann et al. 2024), k per token on average, and shipped with one fixed threshold. Both are
Matryoshka SAEs (Bussmann et al. 2025): the first 64 and the first 256 features must also reconstruct on their own,
which keeps a broad feature, such as a topic, from being split over several features. An auxiliary loss revives dead
features: they learn to reconstruct the error that the live features leave.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor
from transformers import LlamaForCausalLM

from tools.demo.language_model import CONTEXT

D_SAE = 1024
PREFIXES = (64, 256, D_SAE)
DEAD_AFTER = 200
AUXILIARY_K = 64
AUXILIARY_WEIGHT = 1 / 32


@dataclass(slots=True)
class TrainedSae:
    """W_enc [d_in, d_sae], W_dec [d_sae, d_in], b_enc [d_sae], b_dec [d_in], all float32."""

    kind: str
    k: int
    W_enc: Tensor
    W_dec: Tensor
    b_enc: Tensor
    b_dec: Tensor
    threshold: Tensor | None = None

    def pre(self, x: Tensor) -> Tensor:
        """Pre-activations [tokens, d_sae] of residuals [tokens, d_in]."""
        return (x - self.b_dec) @ self.W_enc + self.b_enc

    def encode(self, x: Tensor) -> Tensor:
        """Activations [tokens, d_sae] as the shipped file defines them."""
        pre = torch.relu(self.pre(x))
        if self.threshold is not None:
            return pre * (pre > self.threshold)
        return keep_per_token(pre, self.k)

    def decode(self, acts: Tensor) -> Tensor:
        """Reconstruction [tokens, d_in]."""
        return acts @ self.W_dec + self.b_dec


def keep_per_token(acts: Tensor, k: int) -> Tensor:
    """The k largest entries of each row, with all other entries zero."""
    values, places = acts.topk(k, dim=-1)
    return torch.zeros_like(acts).scatter(-1, places, values)


def keep_per_batch(acts: Tensor, k: int) -> Tensor:
    """The k x rows largest entries of the whole batch, with all other entries zero."""
    lowest = acts.flatten().topk(k * acts.shape[0]).values[-1]
    return acts * (acts >= lowest)


@torch.no_grad()
def residuals(
    model: LlamaForCausalLM, rows: Sequence[list[int]], layers: Sequence[int]
) -> tuple[dict[int, Tensor], Tensor]:
    """The residual streams after `layers`, and the token ids, of all tokens except BOS and padding.

    Returns float32 [tokens, d_in] per layer and int64 [tokens], in the order of the rows.
    """
    parts: dict[int, list[Tensor]] = {layer: [] for layer in layers}
    seen: list[Tensor] = []
    bos, pad = model.config.bos_token_id, model.config.pad_token_id
    size = max(1, 8192 // max(map(len, rows)))
    for start in range(0, len(rows), size):
        part = [row[:CONTEXT] for row in rows[start : start + size]]
        width = max(map(len, part))
        tokens = torch.tensor([row + [pad] * (width - len(row)) for row in part])
        states = model.model(tokens, output_hidden_states=True, use_cache=False).hidden_states
        wanted = (tokens != bos) & (tokens != pad)
        seen.append(tokens[wanted])
        for layer in layers:
            parts[layer].append(states[layer + 1][wanted])
    return {layer: torch.cat(part) for layer, part in parts.items()}, torch.cat(seen)


def _start(x: Tensor, kind: str, k: int) -> TrainedSae:
    """An untrained SAE: its decoder rows are random unit vectors, and its encoder is their transpose."""
    W_dec = torch.nn.functional.normalize(torch.randn(D_SAE, x.shape[1]), dim=1)
    sae = TrainedSae(kind, k, W_dec.T.clone(), W_dec, torch.zeros(D_SAE), x.mean(0))
    for weight in (sae.W_enc, sae.W_dec, sae.b_enc, sae.b_dec):
        weight.requires_grad_(True)
    return sae


def _loss(sae: TrainedSae, x: Tensor, idle: Tensor) -> tuple[Tensor, Tensor]:
    """The training loss of a batch [rows, d_in], and the activations. `idle` counts the steps since each feature was
    active."""
    pre = torch.relu(sae.pre(x))
    acts = keep_per_token(pre, sae.k) if sae.kind == "topk" else keep_per_batch(pre, sae.k)
    miss, loss, start = x - sae.b_dec, torch.zeros(()), 0
    for end in PREFIXES:
        miss = miss - acts[:, start:end] @ sae.W_dec[start:end]
        loss = loss + miss.pow(2).sum(1).mean() / len(PREFIXES)
        start = end
    dead = idle > DEAD_AFTER
    if dead.any():
        revived = keep_per_token(sae.pre(x)[:, dead], min(AUXILIARY_K, int(dead.sum())))
        again = miss.detach() - torch.relu(revived) @ sae.W_dec[dead]
        loss = loss + AUXILIARY_WEIGHT * again.pow(2).sum(1).mean()
    return loss, acts.detach()


def train_sae(x: Tensor, kind: str, k: int, steps: int, rows: int, seed: int) -> TrainedSae:
    """Train an SAE on residuals [tokens, d_in]. Its decoder rows have unit norm after every step."""
    torch.manual_seed(seed)
    scale = float((x - x.mean(0)).pow(2).sum(1).mean().sqrt())
    sae = _start(x[:100_000] / scale, kind, k)
    weights = [sae.W_enc, sae.W_dec, sae.b_enc, sae.b_dec]
    optimiser = torch.optim.Adam(weights, lr=1e-3, betas=(0.9, 0.99), fused=True)
    idle = torch.zeros(D_SAE)
    lowest = torch.zeros(())
    for step in range(steps):
        for group in optimiser.param_groups:
            group["lr"] = 1e-3 * min(1.0, (step + 1) / 100, (steps - step) / (0.3 * steps))
        loss, acts = _loss(sae, x[torch.randint(len(x), (rows,))] / scale, idle)
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
        with torch.no_grad():
            sae.W_dec.copy_(torch.nn.functional.normalize(sae.W_dec, dim=1))
            fired = acts.sum(0) > 0
            idle = torch.where(fired, torch.zeros(()), idle + 1)
            lowest = lowest.lerp(acts[acts > 0].min(), 0.02 if step else 1.0)
    W_enc, W_dec, b_enc, b_dec = (weight.detach() for weight in weights)
    threshold = torch.full((D_SAE,), float(lowest) * scale) if kind == "jumprelu" else None
    return TrainedSae(kind, k, W_enc, W_dec, b_enc * scale, b_dec * scale, threshold)


@torch.no_grad()
def sae_figures(sae: TrainedSae, x: Tensor) -> dict[str, float]:
    """The mean L0, the unexplained variance and the share of features that are never active on x [tokens, d_in]."""
    missed, active, fired = 0.0, 0.0, torch.zeros(D_SAE, dtype=torch.bool)
    for part in x.split(4096):
        acts = sae.encode(part)
        missed += float((part - sae.decode(acts)).pow(2).sum())
        active += float((acts > 0).sum())
        fired |= (acts > 0).any(0)
    total = float((x - x.mean(0)).pow(2).sum())
    return {
        "l0": active / len(x),
        "fvu": missed / total,
        "dead_share": 1 - float(fired.float().mean()),
        "median_residual_norm": float(x.norm(dim=1).median()),
        "tokens": len(x),
    }


def save_sae(sae: TrainedSae, folder: Path, model_name: str, layer: int) -> None:
    """Write cfg.json and sae_weights.safetensors as SAELens 6 does."""
    folder.mkdir(parents=True, exist_ok=True)
    tensors = {"W_enc": sae.W_enc, "W_dec": sae.W_dec, "b_enc": sae.b_enc, "b_dec": sae.b_dec}
    config: dict[str, object] = {
        "architecture": sae.kind,
        "d_in": sae.W_enc.shape[0],
        "d_sae": sae.W_enc.shape[1],
        "dtype": "float32",
        "device": "cpu",
        "apply_b_dec_to_input": True,
        "normalize_activations": "none",
        "reshape_activations": "none",
    }
    if sae.threshold is None:
        config |= {"k": sae.k, "rescale_acts_by_decoder_norm": False}
    else:
        tensors["threshold"] = sae.threshold
    config["metadata"] = {
        "sae_lens_version": "6.54.12",
        "model_name": model_name,
        "hook_name": f"blocks.{layer}.hook_resid_post",
        "hf_hook_name": f"model.layers.{layer}.output",
        "hook_head_index": None,
        "prepend_bos": True,
        "context_size": CONTEXT,
        "exclude_special_tokens": True,
    }
    text = json.dumps(config, indent=2) + "\n"
    (folder / "cfg.json").write_text(text, encoding="utf-8")
    save_file(
        {name: tensor.contiguous() for name, tensor in tensors.items()},
        folder / "sae_weights.safetensors",
    )


def load_sae(folder: Path) -> TrainedSae:
    """The SAE that `save_sae` wrote."""
    config = json.loads((folder / "cfg.json").read_text(encoding="utf-8"))
    return TrainedSae(
        config["architecture"], config.get("k", 0), **load_file(folder / "sae_weights.safetensors")
    )
