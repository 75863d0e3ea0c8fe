"""The page of the verified models, from the figures that a run has kept."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from benchmarks.kept import RESULTS
from benchmarks.markdown import prose, table

PAGE = Path(__file__).parents[2] / "docs" / "verified-models.md"

BOUND = 1.25
"""By how much the engine's distance from float32 may exceed that of transformers before the page names it. Over so few
tokens the figures of two right ways differ by this much."""

IDENTITY = 1e-4
"""By how much a sum of float32 numbers may be off."""

_INTRO = """\
# Verified models

`python -m tools.verified` writes this page: it serves a model of each architecture, compares it with transformers, and keeps
the figures. Run it again after an upgrade of torch or transformers.

- **Truth** is transformers in float32 over the same weights. A cell has the engine's distance from it and, in brackets, that
  of transformers in the precision in which the model is served. Where the first is not larger than the second, the engine
  is as right as the reference.
- **A distance** is the mean difference of the log-probabilities of tokens, in nats.
- **Small models** have random weights, 4 layers and 64 channels. Their weights are spread as trained ones are: the first
  token has massive activations in two channels, and weights of norms differ by orders of magnitude. So they are harder to
  compute in half precision than trained models, and distances are large on both sides.
- **Mixtures of experts**: a rounding can send a token to another expert, and then this token is far from float32, be it
  in the engine or in transformers. Over few tokens such a chance decides the figures of both.
- **Q8**: the truth is what the 8-bit codes of the layers mean in float32, with the output embedding in bfloat16. The engine
  holds this embedding in 8 bits too; its distance has that in it.
"""

_COLUMNS = """\
| column | what was done |
|---|---|
| read | a text of 160 tokens was scored |
| written | 24 tokens were written after a prompt of 300; transformers made the same steps with its own cache |
| next turn | the same after the prompt, the answer and 20 more tokens, with how many tokens the engine took over from the first turn |
| sites | a direction was added at each place where an SAE can be, and the text was scored; the hooks on transformers are the tool's own. The cell has the number of sites and the largest ratio of the two distances |
| seeds | a seeded request had the same tokens alone and beside seven others |
| compiled | decoder layers that run in one compiled call, of all layers, and modules with a function of the service |
| rows | whether rows of several requests share passes |
"""


def newest() -> Path:
    """The file of the newest run."""
    return max(RESULTS.glob("*-verified.json"))


def nothing() -> dict[str, dict[str, Any]]:
    """The rows before anything is measured."""
    return {"models": {}, "embedders": {}}


def found_before(machine: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """The rows of the newest run, where it was made with these libraries on this processor."""
    kept = json.loads(newest().read_text())
    facts = ("processor", "torch", "transformers")
    if any(kept["machine"][fact] != machine[fact] for fact in facts):
        return nothing()
    return {part: kept[part] for part in nothing()}


def page(kept: Mapping[str, Any]) -> str:
    """The whole page."""
    machine, models = kept["machine"], kept["models"]
    embedders = kept["embedders"]
    when = prose(
        f"Made on {kept['started'][:10]} by steerserve {kept['version'].partition('+')[0]} with torch "
        f"{machine['torch']}, transformers {machine['transformers']} and Python {machine['python']} on "
        f"{machine['processor']} ({machine['cores']} cores, {machine['instructions']}"
        f"{', ' + machine['card'] if machine['card'] else ', no GPU'})."
    )
    parts = [
        _INTRO,
        when,
        "## Language models",
        _COLUMNS.rstrip(),
        _overview(models),
        "## What does not agree",
        "\n".join(f"- {line}" for line in disagreements(kept)) or "Nothing.",
        "## Sites",
        prose(
            "The distance with a direction added at each site, of the engine and, in brackets, of transformers. The "
            "direction is half as long as the value at the site. Sites that a model does not have are empty."
        ),
        _sites(models),
        "## Embedding models",
        prose(
            "The distance of the vectors of texts from those of float32, as a part of their length; and the largest "
            "difference between a vector made beside others and made alone."
        ),
        _embedders(embedders),
    ]
    return "\n\n".join(part.rstrip("\n") for part in parts) + "\n"


def disagreements(kept: Mapping[str, Any]) -> list[str]:
    """What is not as near as transformers, a line each, with its figures."""
    lines = []
    for name, row in kept["models"].items():
        pairs = {"read": row["read"], "written": row["written"], "next turn": row["kept"]}
        pairs |= {f"site `{site}`": each for site, each in row["sites"].items()}
        lines += [
            f"{name}, {what}: {_pair(each)}, {_ratio(each):.2f} times as far"
            for what, each in pairs.items()
            if _ratio(each) > BOUND
        ]
        if not row["seeds"]:
            lines.append(f"{name}: a seeded request had other tokens beside others than alone")
        if row["identities"] > IDENTITY:
            lines.append(
                f"{name}: sites in float32 are off their definition by {row['identities']:.2g}"
            )
        lines += [
            f"{name}: {module} keeps the library's code" for module in row["compiled"]["refused"]
        ]
        lines += [f"{name}: {warning}" for warning in row["warnings"]]
    for name, row in kept["embedders"].items():
        if _ratio(row["vectors"]) > BOUND:
            lines.append(f"{name}, vectors: {_pair(row['vectors'])}")
    return lines


def _overview(models: Mapping[str, Any]) -> str:
    head = ("model", "read", "written", "next turn", "sites", "seeds", "compiled", "rows")
    return table(head, [_line(name, row) for name, row in models.items()])


def _line(name: str, row: Mapping[str, Any]) -> tuple[str, ...]:
    compiled, kept = row["compiled"], row["kept"]
    worst = max(map(_ratio, row["sites"].values()))
    reused = f"{kept['reused']} kept" if kept["reused"] > 0 else "none kept"
    return (
        name,
        _pair(row["read"]),
        _pair(row["written"]),
        f"{_pair(kept)}, {reused}",
        f"{len(row['sites'])}, {worst:.2f}",
        "the same" if row["seeds"] else "**differ**",
        f"{compiled['layers']} of {row['layers']}, {compiled['modules']} modules",
        "shared" if row["row_steps"]["are_batched"] else "alone",
    )


def _sites(models: Mapping[str, Any]) -> str:
    names = list(dict.fromkeys(site for row in models.values() for site in row["sites"]))
    lines = []
    for name, row in models.items():
        cells = [_pair(row["sites"][site]) if site in row["sites"] else "" for site in names]
        lines.append((name, *cells))
    return table(("model", *(f"`{site}`" for site in names)), lines)


def _embedders(embedders: Mapping[str, Any]) -> str:
    lines = [
        (
            name,
            _pair(row["vectors"]),
            f"{row['vectors']['beside_alone']:.2g}",
            str(row["vectors"]["texts"]),
        )
        for name, row in embedders.items()
    ]
    return table(("model", "vectors", "beside others", "texts"), lines)


def _pair(found: Mapping[str, float]) -> str:
    return f"{found['ours']:.2g} ({found['library']:.2g})"


def _ratio(found: Mapping[str, float]) -> float:
    """How many times as far as transformers the engine is. Distances below a float32 rounding count as that."""
    return max(found["ours"], 1e-5) / max(found["library"], 1e-5)


def write() -> None:
    PAGE.write_text(page(json.loads(newest().read_text())), encoding="utf-8")
