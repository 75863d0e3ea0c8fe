"""The names of SAELens: which SAE of the hub a release and an id mean, such as
`gpt2-small-res-jb/blocks.8.hook_resid_pre`.

SAELens keeps a registry of them. Here it is a table in text, one line for each release and each SAE, with tabs between
the fields. A line of a release has its name, the repository, the model, the loader of SAELens and the overrides as a
JSON object; the lines of its SAEs follow, with an empty first field, the id, the path in the repository (empty where it
is the id), the id at Neuronpedia and the factor of the normalisation. Lines that begin with `#` are comments; the first
one says the version.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from difflib import get_close_matches
from typing import Any

from steerserve.errors import Refusal
from steerserve.rules.field_faults import refuse_value
from steerserve.rules.saes.units import why_never

NEAR = 5
"""How many names a refusal lists."""
SIMILARITY = 0.6
"""How similar a name must be to be listed, as difflib measures it."""
COMPARED = 100
"""Characters of a name that are compared."""

OWN_FORMAT = "sae_lens"
"""The loader of the files that SAELens itself writes."""
READ = frozenset(
    {
        OWN_FORMAT,
        "connor_rob_hook_z",
        "deepseek_r1",
        "dictionary_learning_1",
        "gemma_2",
        "gemma_3",
        "goodfire",
        "llama_scope",
        "llama_scope_r1_distill",
        "qwen_scope",
        "sparsify",
    }
)
"""The loaders of SAELens whose files this service reads."""
NEVER_READ = {
    "gemma_2_transcoder": "a transcoder, which reads one place and writes into another",
    "mwhanna_transcoder": "a transcoder, which reads one place and writes into another",
    "mntss_clt_layer_transcoder": "a cross-layer transcoder, which reads one layer and writes into others",
    "temporal": "a temporal SAE, which reads whole sequences and not one position",
}
"""Why the files of other loaders are no SAE that can be attached."""


@dataclass(frozen=True, slots=True)
class Entry:
    """One SAE of a release. `norm_factor` is None where SAELens has none."""

    path: str
    neuronpedia_id: str | None
    norm_factor: float | None


@dataclass(frozen=True, slots=True)
class Release:
    """A release, with its SAEs by their ids. `overrides` are values of the configuration that replace the files'."""

    repo_id: str
    model: str
    loader: str
    overrides: Mapping[str, Any]
    entries: dict[str, Entry] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Registry:
    """All releases by their names, as a version of SAELens has them."""

    version: str
    releases: Mapping[str, Release]


@dataclass(frozen=True, slots=True)
class NamedSae:
    """The SAE that a name means. `overrides` are those that it needs at the attach, because its files lack them."""

    name: str
    repo_id: str
    path: str
    model: str
    loader: str
    neuronpedia_id: str | None
    overrides: Mapping[str, str | float | bool]


def read_table(text: str) -> Registry:
    """The registry of a table in text."""
    releases: dict[str, Release] = {}
    release = Release("", "", "", {})
    lines = text.splitlines()
    version = lines[0].removeprefix("#").strip() if lines else ""
    for line in lines:
        if not line or line.startswith("#"):
            continue
        name, *fields = line.split("\t")
        fields += [""] * (4 - len(fields))
        if name:
            repo_id, model, loader, overrides = fields
            release = Release(repo_id, model, loader or OWN_FORMAT, json.loads(overrides or "{}"))
            releases[name] = release
        else:
            sae_id, path, neuronpedia_id, factor = fields
            norm_factor = float(factor) if factor else None
            release.entries[sae_id] = Entry(path or sae_id, neuronpedia_id or None, norm_factor)
    return Registry(version, releases)


def write_table(version: str, releases: Mapping[str, Any]) -> str:
    """The table of the registry of SAELens, which is its file `pretrained_saes.yaml` as Python values."""
    lines = [f"# {version}"]
    for name, release in releases.items():
        overrides = release.get("config_overrides")
        facts = json.dumps(overrides, sort_keys=True) if overrides else ""
        loader = release.get("conversion_func") or ""
        fields = [name, release["repo_id"], release["model"], loader, facts]
        lines.append("\t".join(fields).rstrip("\t"))
        for sae in release["saes"]:
            sae_id, path = str(sae["id"]), str(sae["path"])
            own = "" if path == sae_id else path
            factor = str(sae.get("norm_scaling_factor", ""))
            fields = ["", sae_id, own, sae.get("neuronpedia") or "", factor]
            lines.append("\t".join(fields).rstrip("\t"))
    return "\n".join(lines) + "\n"


def resolve(registry: Registry, name: str) -> NamedSae:
    """The SAE that `release/id` means.

    Raises:
        Refusal: VALIDATION_ERROR for an unknown release or id, with the names most like it; SAE_INCOMPATIBLE for an SAE
            whose files this service cannot read.
    """
    release_name, _, sae_id = name.partition("/")
    release = registry.releases.get(release_name)
    if release is None:
        near = _nearest(release_name, list(registry.releases))
        raise _unknown(registry, "release", release_name, near)
    entry = release.entries.get(sae_id)
    if entry is None:
        near = _nearest(sae_id, list(release.entries)) or list(release.entries)[:NEAR]
        near = [f"{release_name}/{each}" for each in near]
        raise _unknown(registry, "id", name, near)
    why = NEVER_READ.get(release.loader) or why_never(release.repo_id, entry.path)
    if why is None and release.loader not in READ:
        why = f"in a format that this version cannot read (loader {release.loader} of SAELens)"
    if why is not None:
        raise Refusal("SAE_INCOMPATIBLE", f"{name} of SAELens is {why}", path=entry.path)
    return NamedSae(
        name,
        release.repo_id,
        entry.path,
        release.model,
        release.loader,
        entry.neuronpedia_id,
        _overrides(release, entry),
    )


def _overrides(release: Release, entry: Entry) -> dict[str, str | float | bool]:
    """What SAELens knows of an SAE beside its files, as overrides of an attach. The formats of others say it in their
    files."""
    if release.loader != OWN_FORMAT:
        return {}
    needed: dict[str, str | float | bool] = {}
    if normalisation := release.overrides.get("normalize_activations"):
        needed["normalisation"] = str(normalisation)
    if entry.norm_factor is not None:
        needed["norm_factor"] = entry.norm_factor
    model_arguments = release.overrides.get("model_from_pretrained_kwargs") or {}
    if model_arguments.get("center_writing_weights"):
        needed["is_centred"] = True
    return needed


def _nearest(name: str, known: Sequence[str]) -> list[str]:
    return get_close_matches(name[:COMPARED], known, NEAR, SIMILARITY)


def _unknown(registry: Registry, what: str, name: str, near: Sequence[str]) -> Refusal:
    why = f"SAELens {registry.version} has no {what} {name[:COMPARED]!a}"
    message = f"sae_lens: {why}; near it: {', '.join(near) or '(none)'}"
    place = ["body", "sae_lens"]
    return refuse_value(place, why, message, param="sae_lens", unknown=what, near=list(near))
