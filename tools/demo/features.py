"""Labels of SAE features: the words that activate each feature, and the features that steer a story to a topic.

A topic feature is chosen by its effect on the output. Candidates are the features that are most active on the topic,
and the features whose decoder rows lie closest to the direction of the topic: the mean residual of its tokens minus the
mean residual of all topics. Stories are sampled while each candidate steers, and the stories with the topic are
counted.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from transformers import LlamaForCausalLM, PreTrainedTokenizerFast

from tools.demo.corpus import TOPIC_WORDS, CorpusDocument, has_topic
from tools.demo.sae import D_SAE, TrainedSae
from tools.demo.steering import StorySampling, continuation_loss, sample

TOP_TOKENS = 5
CANDIDATES = 2
MULTIPLES = (0.36, 0.42, 0.48, 0.56, 0.64)
FINER = (0.94, 1.0, 1.06, 1.12)
FINALISTS = 2
FIRST_TOKENS = 72
STRENGTH_LIMIT = 200.0
FLUENCY_MARGIN = 1.0


@dataclass(slots=True)
class FeatureStatistics:
    """Statistics of each feature, [d_sae]. `by_topic` [topics, d_sae] has the mean activations over the tokens of each
    topic.

    `directions` [topics, d_in] has the mean residual of each topic's tokens minus the mean residual of all topics.
    """

    maximum: Tensor
    mean: Tensor
    frequency: Tensor
    by_topic: Tensor
    directions: Tensor
    top_tokens: list[list[str]]


@dataclass(frozen=True, slots=True)
class Trial:
    """One feature at one strength: the share of samples with the topic, and the mean loss of the samples."""

    feature: int
    strength: float
    share: float
    loss: float


def _token_text(tokenizer: PreTrainedTokenizerFast, token: int) -> str:
    """A token as readable text."""
    return str(tokenizer.decode([token])).strip()


@torch.no_grad()
def statistics(
    sae: TrainedSae, x: Tensor, tokens: Tensor, topics: Tensor, tokenizer: PreTrainedTokenizerFast
) -> FeatureStatistics:
    """Statistics over residuals [n, d_in] with token ids [n] and topic numbers [n] (-1: none)."""
    maximum, total, count = (torch.zeros(D_SAE) for _ in range(3))
    by_topic = torch.zeros(len(TOPIC_WORDS) + 1, D_SAE)
    residual = torch.zeros(len(TOPIC_WORDS) + 1, x.shape[1])
    by_token = torch.zeros(len(tokenizer), D_SAE)
    for part, ids, topic in zip(x.split(4096), tokens.split(4096), topics.split(4096), strict=True):
        acts = sae.encode(part)
        maximum = torch.maximum(maximum, acts.amax(0))
        total += acts.sum(0)
        count += (acts > 0).float().sum(0)
        by_topic.index_add_(0, topic % len(by_topic), acts)
        residual.index_add_(0, topic % len(by_topic), part)
        by_token.index_add_(0, ids, acts)
    sizes = torch.bincount(topics % len(by_topic), minlength=len(by_topic)).clamp(min=1)
    best = by_token.topk(4 * TOP_TOKENS, dim=0)
    tops = []
    for feature in range(D_SAE):
        pairs = zip(
            best.indices[:, feature].tolist(), best.values[:, feature].tolist(), strict=True
        )
        texts = [_token_text(tokenizer, token) for token, value in pairs if value > 0]
        tops.append(list(dict.fromkeys(text for text in texts if text))[:TOP_TOKENS])
    mean = total / count.clamp(min=1)
    by_topic, residual = (sums[:-1] / sizes[:-1, None] for sums in (by_topic, residual))
    directions = residual - residual.mean(0)
    return FeatureStatistics(maximum, mean, count / len(x), by_topic, directions, tops)


def candidates(sae: TrainedSae, stats: FeatureStatistics) -> dict[str, list[int]]:
    """The features to try for each topic: the most selective features, and the features closest to the topic's
    direction."""
    others = (stats.by_topic.sum(0) - stats.by_topic) / (len(TOPIC_WORDS) - 1)
    difference = stats.by_topic - others
    closeness = stats.directions @ sae.W_dec.T
    results = {}
    for number, topic in enumerate(TOPIC_WORDS):
        active = difference[number].topk(CANDIDATES).indices.tolist()
        close = closeness[number].topk(CANDIDATES).indices.tolist()
        results[topic] = list(dict.fromkeys([*close, *active]))
    return results


@dataclass(frozen=True, slots=True)
class Stage:
    """The parts that all trials of one SAE share: the model, the layer, and how stories are drawn."""

    model: LlamaForCausalLM
    tokenizer: PreTrainedTokenizerFast
    sae: TrainedSae
    layer: int
    sampling: StorySampling

    def trials(
        self,
        prompt: Sequence[int],
        topic: str,
        plan: Sequence[tuple[int, float]],
        rows: int,
        seed: int,
    ) -> list[Trial]:
        """Draw `rows` stories for each (feature, strength) of the plan, all in one batch."""
        vectors = torch.stack([strength * self.sae.W_dec[feature] for feature, strength in plan])
        drawn = sample(
            self.model,
            prompt,
            rows * len(plan),
            self.sampling,
            seed,
            self.layer,
            vectors.repeat_interleave(rows, dim=0),
        )
        losses = continuation_loss(self.model, prompt, drawn)
        texts = self.tokenizer.batch_decode(drawn, skip_special_tokens=True)
        results = []
        for place, (feature, strength) in enumerate(plan):
            own = slice(place * rows, (place + 1) * rows)
            share = sum(has_topic(text, topic) for text in texts[own]) / rows
            results.append(Trial(feature, strength, share, sum(losses[own]) / rows))
        return results


def choose(
    stage: Stage,
    prompts: Sequence[Sequence[int]],
    tried: dict[str, list[int]],
    norm: float,
    bound: float,
    say: Callable[[str], None],
) -> dict[str, Trial]:
    """The best feature and strength of each topic. The figures of a trial are its worst figures over the prompts."""
    strengths = [norm * multiple for multiple in MULTIPLES]
    rough = replace(stage, sampling=replace(stage.sampling, max_new_tokens=FIRST_TOKENS))
    best = {}
    for number, (topic, features) in enumerate(tried.items()):
        plan = [(feature, strength) for feature in features for strength in strengths]
        first = rough.trials(prompts[0], topic, plan, 8, seed=5000 + number)
        finalists: dict[int, float] = {}
        for trial in sorted(first, key=lambda trial: rank(trial, bound), reverse=True):
            if len(finalists) < FINALISTS:
                finalists.setdefault(trial.feature, trial.strength)
        plan = [
            (feature, min(STRENGTH_LIMIT, round(2 * strength * factor) / 2))
            for feature, strength in finalists.items()
            for factor in FINER
        ]
        per_prompt = [
            stage.trials(prompt, topic, plan, 20, seed=6000 + 100 * number + place)
            for place, prompt in enumerate(prompts)
        ]
        worst = [_worst(some) for some in zip(*per_prompt, strict=True)]
        best[topic] = max(worst, key=lambda trial: rank(trial, bound))
        say(f"{topic}: {best[topic]}")
    return best


def _worst(trials: Sequence[Trial]) -> Trial:
    """The trials of one feature on several prompts as one trial, with the lowest share and the highest loss."""
    share = min(trial.share for trial in trials)
    return replace(trials[0], share=share, loss=max(trial.loss for trial in trials))


def rank(trial: Trial, bound: float) -> float:
    """How good a trial is; a higher value is better. A tenth of the loss, and five times the loss above the bound, are
    subtracted from the share."""
    return trial.share - 0.1 * trial.loss - 5 * max(0.0, trial.loss - bound)


def entries(
    stats: FeatureStatistics, verified: dict[int, dict[str, Any]]
) -> dict[str, dict[str, Any]]:
    """The content of labels.json: an entry for every feature that was ever active. `verified` has further fields for
    the entries of topic features."""
    names = list(TOPIC_WORDS)
    shares = stats.by_topic / stats.by_topic.sum(0).clamp(min=1e-9)
    results: dict[str, dict[str, Any]] = {}
    for feature in range(D_SAE):
        if stats.frequency[feature] == 0:
            continue
        share, number = shares[:, feature].max(0)
        tops = stats.top_tokens[feature]
        prefix = f"{names[int(number)]}: " if share > 0.6 else ""
        results[str(feature)] = {
            "label": prefix + ", ".join(tops[:3]),
            "max_activation": round(float(stats.maximum[feature]), 3),
            "mean_activation": round(float(stats.mean[feature]), 3),
            "frequency": round(float(stats.frequency[feature]), 6),
            "top_tokens": tops,
            **verified.get(feature, {}),
        }
    return results


def topic_numbers(
    documents: Sequence[CorpusDocument], rows: Sequence[list[int]], bos: int
) -> Tensor:
    """The topic number of each token of the rows except BOS, [tokens]; -1 for a document without a topic."""
    names = list(TOPIC_WORDS)
    parts = []
    for document, row in zip(documents, rows, strict=True):
        number = names.index(document.topic) if document.topic else -1
        parts.append(torch.full((sum(token != bos for token in row),), number))
    return torch.cat(parts)


def save_labels(labels: dict[str, dict[str, Any]], folder: Path) -> None:
    """Write labels.json."""
    text = json.dumps(labels, ensure_ascii=False, indent=0) + "\n"
    (folder / "labels.json").write_text(text, encoding="utf-8")
