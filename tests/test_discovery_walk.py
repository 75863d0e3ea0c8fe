"""The walk of docs/discovery.md from a concept to a measured lever, run as it is written on the demo."""

from __future__ import annotations

import pytest

from tests.contract.clients import pages
from tests.service import Running


def test_a_concept_in_words_leads_to_a_lever_that_moves_its_words(
    steered: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("STEERSERVE_URL", steered.url)
    names = pages.run("../discovery.md", steered.url)
    names["client"].close()
    lever, kept, answer = names["lever"], names["kept"], names["answer"]
    assert names["found"].answer.sae_id == steered.data("GET", "/api/saes/attachment")["sae_id"]
    assert lever.plain.share_with_words == 0
    assert lever.rows[-1].share_with_words >= 0.5
    assert lever.random[-1].share_with_words < lever.rows[-1].share_with_words / 2
    assert (lever.suggested.smallest_that_works, lever.suggested.largest_unbroken) == (60, 30)
    assert any(word in answer.text for word in names["words"])
    assert (kept.id, kept.digest) == (lever.id, lever.digest)
    profile = names["profile"]
    assert [one.id for one in kept.evidence_for] == [profile.id]
    listed = steered.data("GET", f"/api/effects?evidence_for={profile.id}")
    assert [one["id"] for one in listed["effects"]] == [lever.id]
    steered.data("DELETE", f"/api/profiles/{profile.id}")
    for one in steered.data("GET", "/api/effects")["effects"]:
        steered.data("DELETE", f"/api/effects/{one['id']}")
