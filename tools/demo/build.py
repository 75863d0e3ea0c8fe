"""Rebuild everything in `demo/data` from seeds: `python -m tools.demo.build`.

This module owns the order of the stages and the settings. It builds in a folder beside `data`, which replaces `data` at
the end, so that no reader sees half a model. `--quick` makes a rough model in a few minutes. `--keep-model` keeps the
present model and makes only its SAEs and labels anew.
"""

from __future__ import annotations

import argparse
import json
import re
import shutil
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch
from transformers import LlamaForCausalLM, PreTrainedTokenizerFast

from steerserve.demo import DATA, MODEL_NAME
from tools.demo import features, figures, sae
from tools.demo import language_model as lm
from tools.demo.corpus import SPECIAL_TOKENS, TRAIN_SEED, CorpusDocument, held_out, take
from tools.demo.steering import StorySampling
from tools.demo.tokenizer import save_tokenizer, train_tokenizer


@dataclass(frozen=True, slots=True)
class BuildSettings:
    """Sizes and seeds of a build; `phases` are (steps, rows per batch, row length)."""

    documents: int = 120_000
    phases: tuple[tuple[int, int, int], ...] = ((5200, 8, 256), (600, 2, 1024))
    peak_rate: float = 2.5e-3
    seed: int = 17
    layers: tuple[tuple[int, str], ...] = ((2, "topk"), (3, "jumprelu"))
    k: int = 24
    sae_documents: int = 6_000
    sae_steps: int = 2_000
    sae_rows: int = 2_048
    held_out: int = 800
    threads: int = 2
    sampling: StorySampling = field(default_factory=StorySampling)


QUICK = replace(
    BuildSettings(),
    documents=40_000,
    phases=((1200, 8, 256), (200, 2, 1024)),
    sae_documents=4_000,
    sae_steps=1_200,
)


@dataclass(slots=True)
class Build:
    """A running build: its folder, its clock, and the results that one stage passes to the next."""

    settings: BuildSettings
    folder: Path
    seconds: dict[str, float] = field(default_factory=dict)
    report: dict[str, Any] = field(default_factory=dict)
    began: float = field(default_factory=time.monotonic)

    def say(self, line: str) -> None:
        """Print a line of progress."""
        print(f"[{time.monotonic() - self.began:6.0f} s] {line}", flush=True)

    @contextmanager
    def stage(self, name: str) -> Iterator[None]:
        """Time a stage."""
        self.say(name)
        start = time.monotonic()
        yield
        self.seconds[name] = round(time.monotonic() - start, 1)


@dataclass(frozen=True, slots=True)
class Texts:
    """The documents of a build, their tokenizer and their token ids."""

    tokenizer: PreTrainedTokenizerFast
    documents: list[CorpusDocument]
    training: list[list[int]]
    held_documents: list[CorpusDocument]
    held: list[list[int]]


def make_texts(build: Build) -> Texts:
    """Make the corpus and the tokenizer, and write the tokenizer files."""
    documents = take(TRAIN_SEED, build.settings.documents)
    held = held_out(build.settings.held_out, documents)
    special = re.compile("|".join(map(re.escape, SPECIAL_TOKENS)))
    pieces = (piece for document in documents[:40_000] for piece in special.split(document.text))
    tokenizer = train_tokenizer(piece for piece in pieces if piece)
    save_tokenizer(tokenizer, build.folder / "model")
    training = lm.encode(documents, tokenizer)
    return Texts(tokenizer, documents, training, held, lm.encode(held, tokenizer))


def make_model(build: Build, texts: Texts) -> LlamaForCausalLM:
    """Train, write and read back the model; its figures go into the report."""
    settings = build.settings
    config = lm.model_config(texts.tokenizer)
    model = lm.train(
        texts.training, config, settings.phases, settings.peak_rate, settings.seed, build.say
    )
    lm.save_model(model, build.folder / "model")
    model = lm.load_model(build.folder / "model")
    build.report["model"] = {
        "name": MODEL_NAME,
        "parameters": sum(weight.numel() for weight in model.parameters()),
        "layers": config.num_hidden_layers,
        "hidden_size": config.hidden_size,
        "vocabulary": config.vocab_size,
        "steps": sum(steps for steps, _, _ in settings.phases),
        "tokens": sum(steps * size * length for steps, size, length in settings.phases),
        "phases": [list(phase) for phase in settings.phases],
        "seed": settings.seed,
        "held_out_loss": round(lm.held_out_loss(model, texts.held), 4),
        "held_out_documents": len(texts.held),
        "loss_by_position": lm.loss_by_position(model, texts.held),
    }
    build.say(f"held-out loss {build.report['model']['held_out_loss']}")
    return model


def keep_model(build: Build, kept: Path) -> LlamaForCausalLM:
    """Copy the model of an earlier build with the same settings, and its figures."""
    shutil.copytree(kept / "model", build.folder / "model", dirs_exist_ok=True)
    earlier = json.loads((kept / "report.json").read_text(encoding="utf-8"))
    build.report["model"] = earlier["model"]
    build.seconds["language model"] = earlier["wall_seconds"]["language model"]
    return lm.load_model(build.folder / "model")


def make_saes(build: Build, texts: Texts, model: LlamaForCausalLM) -> dict[int, sae.TrainedSae]:
    """Train, write and read back the SAEs; their figures go into the report."""
    settings, trained = build.settings, {}
    layers = [layer for layer, _ in settings.layers]
    short = texts.training[: settings.sae_documents]
    stream = lm.rows(texts.training[settings.sae_documents :], lm.CONTEXT, settings.seed)
    long = [next(stream) for _ in range(settings.sae_documents // 50)]
    near, _ = sae.residuals(model, short, layers)
    far, _ = sae.residuals(model, long, layers)
    held, _ = sae.residuals(model, texts.held, layers)
    build.report["saes"] = {}
    for layer, kind in settings.layers:
        x = torch.cat((near[layer], far[layer]))
        made = sae.train_sae(
            x, kind, settings.k, settings.sae_steps, settings.sae_rows, settings.seed + layer
        )
        folder = build.folder / "saes" / f"resid_post_layer_{layer}"
        sae.save_sae(made, folder, MODEL_NAME, layer)
        trained[layer] = sae.load_sae(folder)
        numbers = sae.sae_figures(trained[layer], held[layer])
        build.report["saes"][folder.name] = {
            "layer": layer,
            "architecture": kind,
            "d_in": x.shape[1],
            "d_sae": sae.D_SAE,
            "training_tokens": len(x),
            "steps": settings.sae_steps,
            **{name: round(value, 5) for name, value in numbers.items()},
        }
        build.say(f"{folder.name}: {build.report['saes'][folder.name]}")
    return trained


def make_labels(
    build: Build, texts: Texts, model: LlamaForCausalLM, layer: int, made: sae.TrainedSae
) -> list[dict[str, Any]]:
    """Label one SAE, verify its topic features on fresh seeds, and return the proofs that hold."""
    settings, tokenizer = build.settings, texts.tokenizer
    folder = build.folder / "saes" / f"resid_post_layer_{layer}"
    count = settings.sae_documents // 4
    rows = texts.training[:count]
    x, tokens = sae.residuals(model, rows, [layer])
    topics = features.topic_numbers(texts.documents[:count], rows, tokenizer.bos_token_id)
    stats = features.statistics(made, x[layer], tokens, topics, tokenizer)
    bound = build.report["fluency"]["bound"]
    stage = features.Stage(model, tokenizer, made, layer, settings.sampling)
    prompts = [figures.prompt_ids(prompt, tokenizer) for prompt in figures.PROMPTS]
    tried = features.candidates(made, stats)
    norm = build.report["saes"][folder.name]["median_residual_norm"]
    best = features.choose(stage, prompts, tried, norm, bound - 0.1, build.say)
    measure = figures.StorySampler(model, tokenizer, settings.sampling)
    unsteered = measure.unsteered()
    proofs, verified = [], {}
    for topic, trial in best.items():
        vector = trial.strength * made.W_dec[trial.feature]
        shown = figures.prove(measure, topic, unsteered, layer, vector)
        shares = [(row["share_before"], row["share_after"], row["loss_after"]) for row in shown]
        ok = figures.holds(shown, bound) and trial.feature not in verified
        build.say(f"{folder.name} {topic} {trial.feature} at {trial.strength}: {ok} {shares}")
        if ok:
            verified[trial.feature] = _verified(topic, trial, shown)
            proofs.append(_proof(topic, folder.name, layer, trial, settings.sampling, shown))
    features.save_labels(features.entries(stats, verified), folder)
    return proofs


def _proof(
    topic: str,
    name: str,
    layer: int,
    trial: features.Trial,
    sampling: StorySampling,
    shown: list[dict[str, Any]],
) -> dict[str, Any]:
    """The entry in the report of a feature whose effect on the output was measured."""
    return {
        "topic": topic,
        "sae": name,
        "layer": layer,
        "feature_idx": trial.feature,
        "strength": trial.strength,
        "samples": figures.PROOF_SAMPLES,
        "sampling": sampling.as_dict(),
        "prompts": shown,
    }


def _verified(topic: str, trial: features.Trial, shown: list[dict[str, Any]]) -> dict[str, Any]:
    """The entry in labels.json of a feature whose effect on the output was measured."""
    return {
        "label": topic,
        "topic": topic,
        "strength": trial.strength,
        "share_before": {row["prompt"]["kind"]: row["share_before"] for row in shown},
        "share_after": {row["prompt"]["kind"]: row["share_after"] for row in shown},
        "loss_after": {row["prompt"]["kind"]: row["loss_after"] for row in shown},
    }


def margin(proof: dict[str, Any]) -> tuple[float, float]:
    """How good a proof is; a higher value is better. Its lowest share decides first, then its highest loss."""
    rows = proof["prompts"]
    return min(row["share_after"] for row in rows), -max(row["loss_after"] for row in rows)


def build_all(settings: BuildSettings, folder: Path, kept: Path | None = None) -> dict[str, Any]:
    """Run every stage in order. Writes the whole data folder, and returns the report."""
    torch.set_num_threads(settings.threads)
    torch.manual_seed(settings.seed)
    build = Build(settings, folder)
    with build.stage("corpus and tokenizer"):
        texts = make_texts(build)
    if kept:
        model = keep_model(build, kept)
    else:
        with build.stage("language model"):
            model = make_model(build, texts)
    with build.stage("sparse autoencoders"):
        saes = make_saes(build, texts, model)
    loss = build.report["model"]["held_out_loss"]
    build.report["fluency"] = {
        "bound": round(loss + features.FLUENCY_MARGIN, 4),
        "rule": "steered mean loss <= held-out loss + 1 nat per token, under the unsteered model",
    }
    measure = figures.StorySampler(model, texts.tokenizer, settings.sampling)
    with build.stage("abilities"):
        build.report["abilities"] = measure.abilities()
        build.say(str(build.report["abilities"]))
    proofs: list[dict[str, Any]] = []
    with build.stage("labels and proof"):
        for layer, made in saes.items():
            proofs += make_labels(build, texts, model, layer, made)
    build.report["topics"] = proofs
    sea = [proof for proof in proofs if proof["topic"] == "sea"]
    if not sea:
        raise SystemExit("no feature moved the share of sea stories as far as the proof asks")
    build.report["proof"] = max(sea, key=margin)
    build.report["machine"] = figures.machine()
    build.report["wall_seconds"] = build.seconds
    figures.write_report(build.report, folder)
    build.say("done")
    return build.report


def swap(new: Path, target: Path) -> None:
    """Replace the folder `target` by `new`. The old folder is removed last."""
    old = target.with_name(".data-old")
    shutil.rmtree(old, ignore_errors=True)
    if target.exists():
        target.rename(old)
    new.rename(target)
    shutil.rmtree(old, ignore_errors=True)


def main() -> None:
    """Build into a folder beside the target, then replace the target by that folder."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="a rough model in a few minutes")
    parser.add_argument("--output", type=Path, default=DATA, help="the folder to (re)place")
    parser.add_argument("--keep-model", action="store_true", help="make only the rest anew")
    options = parser.parse_args()
    new = options.output.with_name(".data-new")
    shutil.rmtree(new, ignore_errors=True)
    (new / "model").mkdir(parents=True)
    settings = QUICK if options.quick else BuildSettings()
    build_all(settings, new, options.output if options.keep_model else None)
    swap(new, options.output)


if __name__ == "__main__":
    main()
