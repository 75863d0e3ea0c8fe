"""Measures the way from texts to a lever: `python -m benchmarks.levers [--sae FOLDER] [--places]`.

For each concept the feature that tells its texts apart best is measured at a ladder of strengths, and a vector is
trained, which measures itself. With `--places`, only the place of a word's feature in the list of each rank is measured.
The model is that of the demo or, with `--sae`, SmolLM2-135M-Instruct with an SAE for it.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.service import Running, add_model, add_sae, running
from tools.demo.corpus import take
from tools.demo.corpus_results import SEED
from tools.real import concepts, text
from tools.real.concepts import Concept
from tools.real.models import SMOLLM2

from benchmarks.kept import Kept
from steerserve import demo
from steerserve.rules.steering.placed import MAXIMUM

ORDERS = ("value", "share", "rarity")
MEASURED = 1
"""The features of a contrast whose effects are measured."""
RANKED_TEXTS, RANKED_WORDS = 4, 4
LADDER = (0.5, 0.75, 1.0, 1.25, 1.5, 2.0, 3.0)
"""The strengths of the page, in units of the typical one."""
CORPUS_LINES = 1500
STORIES_READ = 400
STORIES = {
    "sea": "sea boat boats ship fish waves water sailor sailed beach shell",
    "castle": "castle king queen princess prince knight dragon crown throne tower",
    "farm": "farm farmer cow cows hay barn pig sheep horse chicken corn",
}


@dataclass(frozen=True)
class Pair:
    """A model with an SAE behind one of its layers, the concepts that are looked for, and texts for a corpus."""

    name: str
    model: Path
    sae: Path
    layer: int
    concepts: Sequence[Concept]
    corpus: Sequence[str]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--sae", type=Path, help="an SAE for SmolLM2-135M-Instruct")
    parser.add_argument("--layer", type=int, default=14, help="the layer of this SAE")
    parser.add_argument("--places", action="store_true", help="only the places of the ranks")
    parser.add_argument("--only", help="the concepts that are measured, separated by commas")
    parser.add_argument("--out", type=Path, help="the file to write")
    chosen = parser.parse_args()
    pairs = []
    if chosen.sae is not None:
        lines = [line for sample in text.samples().values() for line in sample.splitlines()]
        real = concepts.concepts()
        pairs.append(
            Pair(
                "smollm2", SMOLLM2.checkpoint, chosen.sae, chosen.layer, real, lines[:CORPUS_LINES]
            )
        )
    else:
        of_demo = demo.saes()[1]
        lines = [one.written for one in take(SEED, STORIES_READ) if isinstance(one.written, str)]
        pairs.append(
            Pair("demo", demo.MODEL_DIR, of_demo.path, of_demo.layer, of_stories(lines), lines)
        )
    kept = Kept("levers", chosen.out)
    figures = {}
    for pair in pairs:
        wanted = chosen.only.split(",") if chosen.only else [one.name for one in pair.concepts]
        with tempfile.TemporaryDirectory() as home, running(Path(home)) as live:
            figures[pair.name] = of_pair(
                live,
                pair,
                [one for one in pair.concepts if one.name in wanted],
                only_places=chosen.places,
            )
        kept.write(figures)
    kept.end(figures)


def of_pair(
    live: Running, pair: Pair, wanted: Sequence[Concept], *, only_places: bool
) -> dict[str, Any]:
    model = add_model(live, pair.model, "measured")
    live.data("POST", f"/api/models/{model}/load?wait=true")
    sae = add_sae(live, pair.sae)
    live.data("POST", f"/api/saes/{sae}/attach", {"layer": pair.layer})
    corpus = {"name": "texts", "source": "inline", "texts": list(pair.corpus)}
    done(live, "/api/corpora", corpus)
    if only_places:
        return {one.name: {"places": places(live, sae, "measured", one)} for one in wanted}
    return {one.name: of_concept(live, sae, one) for one in wanted}


def of_concept(live: Running, sae: str, concept: Concept) -> dict[str, Any]:
    groups = {"positives": list(concept.having), "negatives": list(concept.without)}
    begun = time.monotonic()
    contrast = done(live, "/api/features/contrast", groups | {"sae_id": sae, "top": MEASURED})
    contrast_s = time.monotonic() - begun
    features = [of_feature(live, sae, one, concept) for one in contrast["features"]]
    begun = time.monotonic()
    vector = done(live, "/api/vectors/train", groups | {"name": concept.name, "read": "mean"})
    train_s = time.monotonic() - begun
    by_probe = vector["measured"]
    begun = time.monotonic()
    words = {"words": list(concept.words)}
    by_words = done(live, f"/api/vectors/{concept.name}/measure", words)["measured"]
    found = {
        "contrast_s": contrast_s,
        "train_s": train_s,
        "measure_s": time.monotonic() - begun,
        "features": features,
        "best_layer": vector["training"]["best_layer"],
        "vector_by_probe": by_probe,
        "not_measured": vector["not_measured"],
        "vector_by_words": by_words,
        "places": places(live, sae, "measured", concept),
    }
    say(concept.name, found)
    return found


def of_feature(live: Running, sae: str, told: dict[str, Any], concept: Concept) -> dict[str, Any]:
    index = told["index"]
    facts = live.data("GET", f"/api/saes/{sae}/features/{index}")
    typical = facts["typical_strength"]
    strengths = sorted({min(MAXIMUM, float(f"{share * typical:.2g}")) for share in LADDER})
    begun = time.monotonic()
    effects = done(
        live,
        "/api/effects",
        {
            "feature": {"index": index, "sae_id": sae},
            "strengths": strengths,
            "tokens": 30,
            "random_directions": 2,
            "target": {"words": list(concept.words)},
        },
    )
    return {
        "index": index,
        "auc_held_out": told["auc_held_out"],
        "promotes": told["promotes"],
        "suggested": effects["suggested"],
        "plain": effects["plain"]["share_with_words"],
        "seconds": time.monotonic() - begun,
        "rows": [
            {
                "strength": row["strength"],
                "share": row["share_with_words"],
                "works": row["works"],
                "damage": row["damage"],
                "sample": row["samples"][0],
            }
            for row in effects["rows"]
        ],
    }


def places(live: Running, sae: str, model: str, concept: Concept) -> list[dict[str, Any]]:
    """For words of the concept: the place, from 1, of the feature that is strongest at the word in the corpus, in the
    list of each rank, at the token of other texts where it is largest."""
    found = []
    for word in concept.words:
        texts = [one for one in concept.having if f" {word}" in one.lower()][:RANKED_TEXTS]
        body = {"by": "examples", "query": word, "limit": 1}
        listed = live.data("POST", f"/api/saes/{sae}/features/search", body)["features"]
        if not texts or not listed:
            continue
        feature = listed[0]["feature_idx"]
        at: dict[str, list[int]] = {order: [] for order in ORDERS}
        in_text: dict[str, list[int]] = {order: [] for order in ORDERS}
        for text_ in texts:
            lists = {order: firing(live, sae, model, text_, order) for order in ORDERS}
            values = {
                position: dict(one)[feature]
                for position, one in lists["value"].items()
                if feature in dict(one)
            }
            if values:
                place = max(values, key=values.__getitem__)
                for order, by_position in lists.items():
                    indices = [index for index, _ in by_position[place]]
                    at[order].append(indices.index(feature) + 1)
                    in_text[order].append(place_in_text(by_position.values(), order, feature))
        if at["value"]:
            found.append({"word": word, "feature": feature, "places": at, "in_text": in_text})
        if len(found) == RANKED_WORDS:
            break
    return found


def place_in_text(positions: Iterable[Sequence[tuple[int, float]]], rank: str, feature: int) -> int:
    """The place of a feature in the list of a whole text, as the page makes it: rarity is added up over the tokens, and
    of the others the largest counts."""
    weights: dict[int, float] = {}
    for one in positions:
        for index, weight in one:
            before = weights.get(index, 0.0)
            weights[index] = before + weight if rank == "rarity" else max(before, weight)
    return sorted(weights, key=lambda index: -weights[index]).index(feature) + 1


def firing(
    live: Running, sae: str, model: str, text_: str, rank: str
) -> dict[int, list[tuple[int, float]]]:
    """The features of each position of a text with what ranks them, in this order."""
    asked = {"positions": "prompt", "top_k": 64, "rank": rank, "read_point": "pre_steering"}
    body = {"model": model, "prompt": text_, "max_tokens": 1, "return_sae_activations": asked}
    answer = live.http.post("/v1/completions", json=body)
    assert answer.status_code == 200, answer.text
    positions = answer.json()["service"]["sae_activations"]["positions"]
    return {
        one["position"]: [
            (each["index"], each.get("weight", each["value"])) for each in one["features"]
        ]
        for one in positions
        if one["position"]
    }


def done(live: Running, path: str, body: dict[str, Any]) -> dict[str, Any]:
    job = live.data("POST", f"{path}?wait=true", body)["job"]
    assert job["state"] == "done", job
    return dict(job["result"])


def say(name: str, found: dict[str, Any]) -> None:
    print(f"\n== {name}: contrast {found['contrast_s']:.0f} s, training {found['train_s']:.0f} s")
    for one in found["features"]:
        suggested = one["suggested"]
        print(f"  feature {one['index']} (AUC {one['auc_held_out']}), suggested {suggested}")
        for row in one["rows"]:
            nats = row["damage"]["nll_over_plain"]
            print(
                f"    {row['strength']:g}: {row['share']:.2f} works {row['works']}, {nats:+.2f} nats"
                f" | {row['sample'][:90]!r}"
            )
    for by in ("vector_by_probe", "vector_by_words"):
        measured = found[by]
        if measured is None:
            print(f"  {by}: {found['not_measured']}")
            continue
        print(
            f"  {by}: best {measured['best']}, works {measured['works']}, probe {measured['probe']}"
        )
        print(f"    random {[round(one['effect'], 2) for one in measured['random']]}")
        for row in measured["layers"]:
            nats = row["damage"]["nll_over_plain"]
            is_unbroken = row["damage"]["is_unbroken"]
            effect = "-" if row["effect"] is None else f"{row['effect']:.2f}"
            print(
                f"    {row['layer']} {row['strength']:g}: {effect}, {nats:+.2f} nats {is_unbroken}"
                f" | {row['sample'][:90]!r}"
            )
    for one in found["places"]:
        print(f"  {one['word']!r}, feature {one['feature']}: {one['places']}", flush=True)


def of_stories(stories: Sequence[str]) -> list[Concept]:
    """The concepts of the demo, from the first sentences of its stories."""
    lines = [story.partition(". ")[0] for story in stories]
    return [concepts.of_words(name, words, lines) for name, words in STORIES.items()]


if __name__ == "__main__":
    main()
