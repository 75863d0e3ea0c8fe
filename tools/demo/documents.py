"""Makes the example documents of the demo: a cluster and a circuit of two layers, both of the topic sea.

Run `python -m tools.demo.documents` after `build`, which made the model, the SAEs and their labels. The members
are the features whose label is of the topic. Every number in the documents is measured here:

- `max_activation` of a member: its largest activation over documents of the corpus.
- The strengths: the smallest total that moves the stories to the topic as far as the proof of the demo asks, shared
  among the members by their mean activations over all tokens.
- The co-activation of an edge: how often the downstream feature fires within the next LAG tokens after the upstream
  feature fires, against how often it fires there anyway; and the same on held-out documents.
- The effect of an edge: the upstream feature is removed from the residual stream, and the loss of activation of the
  downstream feature is compared with the loss when another feature of the same size is removed instead. An edge has
  rung 2, because it is listed only if its effect is clear.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
from torch import Tensor
from transformers import LlamaForCausalLM, PreTrainedTokenizerFast

from steerserve import demo
from tools.demo import language_model as lm
from tools.demo.co_activation import Node, Stories, co_activation, soon
from tools.demo.corpus import TRAIN_SEED, held_out, take, topic_share
from tools.demo.figures import (
    PROMPTS,
    PROOF_SAMPLES,
    PROOF_SEED,
    SHARE_AFTER_AIM,
    StorySampler,
    prompt_ids,
)
from tools.demo.sae import TrainedSae, load_sae
from tools.demo.steering import StorySampling, continuation_loss, sample, steered

TOPIC = "sea"
LAYERS = (2, 3)
MINED_DOCUMENTS = 400
HELD_OUT_DOCUMENTS = 200
EPSILON = 0.1
"""A feature fires where its activation is above this share of its largest activation."""
TOTALS = (40.0, 45.0, 50.0, 55.0, 60.0, 65.0, 70.0, 80.0)
"""The sums of the strengths that are tried, in steps of the residual stream's unit."""
LEAST_LIFT = 2.0
LEAST_SUPPORT = 50
LEAST_EFFECT = 0.05
"""The least share of the downstream activation that must be lost with the upstream feature."""
EFFECT_OVER_CONTROL = 3.0
"""How many times the effect must be the effect of removing another feature."""


class Demo:
    """The shipped model with its SAEs and labels."""

    def __init__(self) -> None:
        self.model: LlamaForCausalLM = lm.load_model(demo.MODEL_DIR)
        self.tokenizer = PreTrainedTokenizerFast.from_pretrained(demo.MODEL_DIR)
        shipped = {sae.layer: sae for sae in demo.saes()}
        self.saes: dict[int, TrainedSae] = {n: load_sae(shipped[n].path) for n in LAYERS}
        self.labels = {n: demo.labels(shipped[n]) for n in LAYERS}
        self.bound: float = demo.report()["fluency"]["bound"]
        self.sampler = StorySampler(self.model, self.tokenizer, StorySampling())
        self.before = self.sampler.unsteered()

    def members(self, layer: int) -> list[Node]:
        """The features whose label is the topic, or begins with the topic and a colon."""
        listed = self.labels[layer].items()
        return [
            Node(layer, index)
            for index, entry in listed
            if entry["label"] == TOPIC or entry["label"].startswith(f"{TOPIC}:")
        ]

    @torch.no_grad()
    def read(self, rows: Sequence[list[int]], removed: Node | None = None) -> Stories:
        """The activations of both SAEs over documents, BOS included, with one feature removed from the residual
        stream."""
        parts: dict[int, list[Tensor]] = {layer: [] for layer in LAYERS}
        ends: list[int] = []
        with self._without(removed):
            for row in rows:
                states = self.model.model(
                    torch.tensor([row]), output_hidden_states=True, use_cache=False
                ).hidden_states
                for layer in LAYERS:
                    parts[layer].append(self.saes[layer].encode(states[layer + 1][0]))
                ends.append((ends[-1] if ends else 0) + len(row))
        return Stories(list(rows), {n: torch.cat(part) for n, part in parts.items()}, ends)

    @contextmanager
    def _without(self, node: Node | None) -> Iterator[None]:
        """Subtract activation x decoder row of a feature from the output of its layer."""
        if node is None:
            yield
            return
        sae = self.saes[node.layer]

        def subtract(
            _module: object, _inputs: object, output: Tensor | tuple[Tensor, ...]
        ) -> object:
            x = output[0] if isinstance(output, tuple) else output
            act = sae.encode(x.flatten(0, -2))[:, node.feature].view(*x.shape[:-1], 1)
            lessened = x - act * sae.W_dec[node.feature]
            return (lessened, *output[1:]) if isinstance(output, tuple) else lessened

        hook = self.model.model.layers[node.layer].register_forward_hook(subtract)
        try:
            yield
        finally:
            hook.remove()

    def shares(self, strengths: Mapping[Node, float]) -> list[tuple[float, float]]:
        """For each prompt of the proof, the share of stories with words of the topic and their mean loss, while these
        strengths steer."""
        vectors: dict[int, Tensor] = {}
        for node, strength in strengths.items():
            added = strength * self.saes[node.layer].W_dec[node.feature]
            vectors[node.layer] = vectors.get(node.layer, torch.zeros_like(added)) + added
        return [self._share(number, vectors) for number in range(len(PROMPTS))]

    def _share(self, number: int, vectors: Mapping[int, Tensor]) -> tuple[float, float]:
        ids = prompt_ids(PROMPTS[number], self.tokenizer)
        with ExitStack() as open_hooks:
            for layer, vector in vectors.items():
                rows = vector.expand(PROOF_SAMPLES, -1)
                open_hooks.enter_context(steered(self.model, layer, rows))
            seed = PROOF_SEED + number
            drawn = sample(self.model, ids, PROOF_SAMPLES, self.sampler.sampling, seed)
        losses = continuation_loss(self.model, ids, drawn)
        texts = self.tokenizer.batch_decode(drawn, skip_special_tokens=True)
        return topic_share(texts, TOPIC), sum(losses) / len(losses)


# ------------------------------------------------------------- strengths


def smallest_strengths(made: Demo, means: Mapping[Node, float]) -> dict[Node, float]:
    """The strengths with the smallest total that every prompt of the proof accepts.

    Raises:
        SystemExit: no total is accepted.
    """
    whole = sum(means.values())
    for total in TOTALS:
        strengths = {node: round(2 * total * mean / whole) / 2 for node, mean in means.items()}
        shares = made.shares(strengths)
        print(f"total strength {total:g}: {shares}", flush=True)
        if all(share > SHARE_AFTER_AIM and loss <= made.bound for share, loss in shares):
            return strengths
    raise SystemExit("no total of the strengths moves the stories to the topic")


# ------------------------------------------------------------- edges


def effect(
    made: Demo, stories: Stories, up: Node, down: Node, thetas: Mapping[Node, float]
) -> tuple[float, float]:
    """The share of the downstream activation that is lost when `up` is removed, and when a control is removed.

    It is measured at the tokens at which `down` fires within LAG tokens after `up`. The control is the feature of the
    same SAE, no member of the topic, whose activations at the firings of `up` are nearest in size.
    """
    first = stories.fires(up, thetas[up])
    at = stories.fires(down, thetas[down]) & soon(first, stories.ends, is_before=True)
    mass = stories.acts[up.layer][first].mean(0)
    for node in made.members(up.layer):
        if node != up:
            mass[node.feature] = math.inf
    size = mass[up.feature].item()
    mass[up.feature] = math.inf
    control = Node(up.layer, int((mass - size).abs().argmin()))
    whole = stories.acts[down.layer][at, down.feature].sum()

    def lost(removed: Node) -> float:
        left = made.read(stories.rows, removed).acts[down.layer][at, down.feature].sum()
        return float(1 - left / whole)

    return lost(up), lost(control)


def edges(
    made: Demo, mined: Stories, held: Stories, thetas: Mapping[Node, float]
) -> list[dict[str, Any]]:
    """The pairs of features that fire one after the other on both sets of documents, and whose effect is clear."""
    measured = []
    for up in (node for node in thetas if node.layer == LAYERS[0]):
        for down in (node for node in thetas if node.layer == LAYERS[1]):
            numbers = co_activation(mined, up, down, thetas, seed=1)
            again = co_activation(held, up, down, thetas, seed=2)
            is_enough = numbers["support"] >= LEAST_SUPPORT and numbers["lift"] >= LEAST_LIFT
            if not is_enough or again["lift"] < LEAST_LIFT:
                continue
            own, control = effect(made, held, up, down, thetas)
            print(f"{up} -> {down}: {numbers}; effect {own:.3f}, control {control:.3f}", flush=True)
            if own >= LEAST_EFFECT and own >= EFFECT_OVER_CONTROL * abs(control):
                measured.append(_edge(up, down, numbers, own, control))
    return measured


def _edge(
    up: Node, down: Node, numbers: dict[str, float], own: float, control: float
) -> dict[str, Any]:
    return {
        "up": {"layer": up.layer, "feature_idx": up.feature, "kind": "feature"},
        "down": {"layer": down.layer, "feature_idx": down.feature, "kind": "feature"},
        "type": "computed",
        "rung": 2,
        "tested_and_failed": [],
        "effect_size": round(own, 4),
        "effect_of_control": round(control, 4),
        "coactivation": {
            **numbers,
            "replicated_heldout": True,
            "corpus_ref": "tools.demo.corpus",
        },
    }


# ------------------------------------------------------------- documents


def sae_reference(made: Demo, layer: int) -> dict[str, Any]:
    """The SAE reference of a document."""
    d_model, n_features = made.saes[layer].W_enc.shape
    return {
        "layer": layer,
        "hook_type": "residual",
        "n_features": n_features,
        "d_model": d_model,
    }


def member(made: Demo, node: Node, strength: float, peak: float) -> dict[str, Any]:
    """A member of a document."""
    entry = made.labels[node.layer][node.feature]
    return {
        "feature_idx": node.feature,
        "strength": strength,
        "sign": 1,
        "label": entry["label"],
        "activation_frequency": entry["frequency"],
        "max_activation": round(peak, 3),
        "meta": {"top_tokens": entry["top_tokens"], "mean_activation": entry["mean_activation"]},
    }


def _head(kind: str, name: str, narrative: str) -> dict[str, Any]:
    return {
        "kind": kind,
        "schema_version": "1",
        "name": name,
        "narrative": narrative,
        "model": {"hf_id": demo.MODEL_NAME},
    }


def _tail(strengths: Mapping[Node, float], layers: Sequence[int]) -> dict[str, Any]:
    totals = {n: sum(s for node, s in strengths.items() if node.layer == n) for n in layers}
    budget: dict[str, Any] = {"intensity": 1.0, "intensity_range": [0.0, 1.5]}
    if len(layers) > 1:
        budget["layers"] = {str(layer): {"B_dir": total} for layer, total in totals.items()}
    else:
        budget["B_dir"] = totals[layers[0]]
    note = "made and measured by python -m tools.demo.documents"
    return {"budget": budget, "provenance": {"source_note": note}}


def cluster_document(made: Demo, mined: Stories) -> dict[str, Any]:
    """The cluster: the features of the topic in the upper SAE. Two of them at once are enough for an event."""
    own = made.members(LAYERS[1])
    strengths = smallest_strengths(made, {node: mined.mean(node) for node in own})
    return {
        **_head(
            "mistudio.cluster-definition",
            "sea words",
            "The features of the topic sea. With intensity 1, most stories of the demo model go to the sea.",
        ),
        "display_token": TOPIC,
        "sae": sae_reference(made, LAYERS[1]),
        "members": [member(made, node, strengths[node], mined.maximum(node)) for node in own],
        "sensing": {"min_k": 2},
        **_tail(strengths, LAYERS[1:]),
    }


def circuit_document(made: Demo, mined: Stories, measured: list[dict[str, Any]]) -> dict[str, Any]:
    """The circuit: the features at the ends of the measured edges, in both SAEs."""
    ends = {
        Node(end["layer"], end["feature_idx"])
        for edge in measured
        for end in (edge["up"], edge["down"])
    }
    own = sorted(ends, key=lambda node: (node.layer, node.feature))
    strengths = smallest_strengths(made, {node: mined.mean(node) for node in own})
    return {
        **_head(
            "mistudio.circuit-definition",
            "from sea words to sea stories",
            "Features of the topic sea in two layers. Each edge says how often the lower feature is followed by the "
            "upper one, and how much of the upper one is lost when the lower one is removed.",
        ),
        "saes": [sae_reference(made, layer) for layer in LAYERS],
        "members": [
            {
                "layer": node.layer,
                "member_kind": "feature_ref",
                "feature": member(made, node, strengths[node], mined.maximum(node)),
            }
            for node in own
        ],
        "edges": measured,
        **_tail(strengths, LAYERS),
    }


def main() -> None:
    """Measure, and write both documents."""
    torch.manual_seed(0)
    made = Demo()
    training = take(TRAIN_SEED, MINED_DOCUMENTS)
    mined = made.read(lm.encode(training, made.tokenizer))
    held = made.read(lm.encode(held_out(HELD_OUT_DOCUMENTS, training), made.tokenizer))
    nodes = [node for layer in LAYERS for node in made.members(layer)]
    thetas = {node: EPSILON * mined.maximum(node) for node in nodes}
    measured = edges(made, mined, held, thetas)
    for path, document in (
        (demo.CLUSTER, cluster_document(made, mined)),
        (demo.CIRCUIT, circuit_document(made, mined, measured)),
    ):
        path.parent.mkdir(exist_ok=True)
        text = json.dumps(document, indent=2, ensure_ascii=False) + "\n"
        path.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
