"""The recipes of docs/recipes: the commands of each page, run as written, and what the page says one sees.

The pages whose tools are not installed with the service are run by `make contract`.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load

from steerserve import demo
from tests.circuits import HIGH, attach, detach
from tests.contract.clients import pages
from tests.service import Running, add_sae

Run = Callable[[str], Any]


@pytest.fixture(scope="module")
def run(shared: Running, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Run]:
    """Runs a page, beside the `recipe.py` that the index says to save."""
    folder = tmp_path_factory.mktemp("recipes")
    (common,) = (text for _, text in pages.blocks("index.md", "python"))
    (folder / "recipe.py").write_text(common)
    attach(shared, [add_sae(shared, sae) for sae in demo.saes()], HIGH.layer)
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        patch.syspath_prepend(folder)
        patch.setenv("STEERSERVE_URL", shared.url)
        yield lambda page: pages.run(page, shared.url)
    sys.modules.pop("recipe").client.close()  # type: ignore[attr-defined]
    for vector in shared.data("GET", "/api/vectors")["vectors"]:
        shared.data("DELETE", f"/api/vectors/{vector['id']}")
    detach(shared)


def test_a_clamped_feature_takes_the_stories_over(run: Run) -> None:
    page = run("golden-gate.md")
    shares = page["sea_shares"]
    assert shares[0] < shares[60] <= shares[120]
    assert shares[120] >= 0.9
    ((evaluated, acted),) = page["acted"](page["clamped"])
    assert acted == evaluated > 0
    assert "sea" in page["who"].text


def test_without_the_direction_the_request_is_not_followed(run: Run) -> None:
    page = run("refusal-direction.md")
    assert page["stored"].operation == "project"
    plain, ablated = page["on_topic"]["the sea"]
    assert ablated <= plain - 0.4
    plain, ablated = page["on_topic"]["the farm"]
    assert ablated >= plain - 0.4


def test_a_contrast_is_added_by_its_multiple(run: Run) -> None:
    shares = run("contrastive-addition.md")["first_person"]
    assert shares[-2] <= 0.2
    assert shares[4] >= shares[0] + 0.5


def test_a_file_as_repeng_writes_it_pushes_both_ways(run: Run) -> None:
    page = run("repeng.md")
    assert [one.layer for one in page["control"].layers] == [1, 2, 3]
    assert page["again"].content_digest == page["control"].content_digest
    sea, farm = zip(*page["controlled"].values(), strict=True)
    assert sea[2] > max(sea[:2])
    assert farm[0] > max(farm[1:])


def test_a_persona_is_steered_and_watched(run: Run) -> None:
    page = run("persona-vectors.md")
    assert [one.layer for one in page["persona"].layers] == [0, 1, 2, 3]
    assert len(page["persona"].warnings) == 2
    shares = page["trait_shares"]
    assert shares[2] >= max(shares[0], shares[-1]) + 0.3
    with_trait, without = page["monitored"].values()
    assert min(with_trait) > max(without)


def test_only_prompts_that_meet_the_condition_are_steered(run: Run) -> None:
    page = run("conditional-steering.md")
    assert page["lowest"] > page["highest"]
    sea, *others = page["answered"].values()
    (plain, steered), ((_, acted),), is_same = sea
    assert steered >= plain + 0.3
    assert acted > 0
    assert not is_same
    for _, ((_, acted),), is_same in others:
        assert acted == 0
        assert is_same


def test_a_capped_axis_brings_a_role_back(run: Run) -> None:
    page = run("assistant-axis.md")
    in_role, default = page["capped"].values()
    assert in_role[1] <= in_role[0] - 0.3
    assert abs(default[1] - default[0]) <= 0.2
    assert sum(acted for _, acted in in_role[2]) > sum(acted for _, acted in default[2])


def test_an_unlearned_subject_leaves_others_as_they_are(run: Run) -> None:
    page = run("unlearning.md")
    plain, edited, _, _ = page["unlearned"]["the sea"]
    assert edited <= plain - 0.5
    _, _, same, counts = page["unlearned"]["the farm"]
    assert same == 10
    assert all(acted == 0 for _, acted in counts)


def test_a_probe_that_is_trained_elsewhere_reads_answers(run: Run, shared: Running) -> None:
    page = run("scikit-learn.md")
    scores = list(page["scores"].values())
    assert min(scores[:2]) > 0 > max(scores[2:])
    # the stored probe reads what the classifier says of the values of the same texts
    asked = {"name": "unseen", "texts": page["unseen"], "positions": "last"}
    asked |= {"sites": [{"site": "resid_post", "layers": [2]}]}
    unseen = shared.data("POST", "/api/captures?wait=true", asked)["job"]["result"]["capture_id"]
    shard = shared.http.get(f"/api/captures/{unseen}/files/shard-00000.safetensors").content
    own = page["classifier"].decision_function(load(shard)["resid_post.2"])
    np.testing.assert_allclose(scores, own, rtol=1e-2, atol=0.05)
    for capture in (page["capture"], unseen):
        shared.data("DELETE", f"/api/captures/{capture}")
    shared.data("DELETE", f"/api/probes/{page['probe'].id}")


def test_every_recipe_is_run_and_listed() -> None:
    names = {path.name for path in pages.RECIPES.glob("*.md")} - {"index.md"}
    listed = set(re.findall(r"\]\(([\w-]+\.md)\)", (pages.RECIPES / "index.md").read_text()))
    assert names == listed
    scripts = (pages.RECIPES.parents[1] / "tests").glob("**/*.py")
    ran = {
        page for path in scripts for page in re.findall(r'run\("([\w-]+\.md)"', path.read_text())
    }
    assert names == ran
