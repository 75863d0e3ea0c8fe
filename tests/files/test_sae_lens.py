"""The registry of SAELens: the copy in the package, and that of an installed `sae_lens`."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from steerserve.errors import Refusal
from steerserve.files import sae_lens
from steerserve.rules.saes.sae_lens import READ, read_table, resolve

REGISTRY = """
own-release:
  conversion_func: null
  model: gpt2
  repo_id: acme/saes
  config_overrides: {normalize_activations: constant_norm_rescale}
  saes:
  - {id: blocks.1, path: layer_1, neuronpedia: gpt2/1-own, norm_scaling_factor: 0.5}
  - {id: same, path: same}
odd-release:
  conversion_func: of_the_future
  model: gpt2
  repo_id: acme/odd
  saes: [{id: one, path: one}]
"""


def test_every_name_of_the_copy_is_an_sae_or_is_refused_with_the_reason() -> None:
    table = sae_lens.COPY.read_text(encoding="utf-8")
    registry = read_table(table)
    loaders, refusals = set(), []
    for release, about in registry.releases.items():
        for sae_id in about.entries:
            try:
                loaders.add(resolve(registry, f"{release}/{sae_id}").loader)
            except Refusal as refusal:
                refusals.append(refusal)
    assert loaders <= READ
    assert loaders >= {"sae_lens", "gemma_2", "gemma_3", "dictionary_learning_1", "llama_scope"}
    assert {refusal.code for refusal in refusals} == {"SAE_INCOMPATIBLE"}
    assert all("transcoder" in r.message or "temporal" in r.message for r in refusals)
    assert len(refusals) < sum(len(about.entries) for about in registry.releases.values()) / 2
    assert f"SAELens {registry.version}" in table[:2000]
    assert "MIT License" in table[:2000]


def test_the_registry_of_an_installed_saelens_is_read_without_importing_it(tmp_path: Path) -> None:
    package, facts = tmp_path / "sae_lens", tmp_path / "sae_lens-99.1.dist-info"
    for folder in (package, facts):
        folder.mkdir()
    (package / "__init__.py").write_text("raise RuntimeError('imported')")
    (package / "pretrained_saes.yaml").write_text(REGISTRY)
    (facts / "METADATA").write_text("Metadata-Version: 2.1\nName: sae-lens\nVersion: 99.1\n")
    program = """
from steerserve.errors import Refusal
from steerserve.files.sae_lens import read_registry
from steerserve.rules.saes.sae_lens import resolve
registry = read_registry()
one, same = (resolve(registry, f"own-release/{each}") for each in ("blocks.1", "same"))
print(registry.version, one.repo_id, one.path, one.neuronpedia_id, dict(one.overrides))
print(same.path, same.neuronpedia_id)
try:
    resolve(registry, "odd-release/one")
except Refusal as refusal:
    print(refusal.code, refusal.message)
"""
    ran = subprocess.run(
        [sys.executable, "-c", f"import sys; sys.path.insert(0, {str(tmp_path)!r})\n{program}"],
        capture_output=True,
        text=True,
        check=True,
    )
    overrides = {"normalisation": "constant_norm_rescale", "norm_factor": 0.5}
    first, second, third = ran.stdout.splitlines()
    assert first == f"99.1 acme/saes layer_1 gpt2/1-own {overrides}"
    assert second == "same None"
    assert third.startswith("SAE_INCOMPATIBLE odd-release/one of SAELens")
    assert "of_the_future" in third
