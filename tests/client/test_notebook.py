"""How answers look in a notebook."""

from __future__ import annotations

import re
import sys
from typing import Any

import pytest

from steerserve import Client
from steerserve.client import shown
from steerserve.client.answers import Answer, Comparison, Feature
from steerserve.control.inference.views import ComparedSide
from tests.service import Running

EVIL = "<script>alert('&')</script>"
ESCAPED = "&lt;script&gt;alert(&#x27;&amp;&#x27;)&lt;/script&gt;"


def side(intensity: float, text: str) -> ComparedSide:
    return ComparedSide(
        intensity=intensity,
        steering={},
        edits=[],
        steering_state=None,
        text=text,
        finish_reason="stop",
        completion_tokens=1,
        sae_activations=None,
    )


def answer(text: str, positions: list[dict[str, Any]] | None = None) -> Answer:
    raw: dict[str, Any] = {"choices": [{"text": text, "finish_reason": "stop"}]}
    if positions is not None:
        raw["service"] = {"sae_activations": {"sae_id": "a", "layer": 1, "positions": positions}}
    return Answer(raw, {})


def test_a_text_with_activations_is_coloured_by_the_strongest_of_each_token() -> None:
    read = [
        {"position": 0, "token_id": 1, "text": EVIL, "features": [{"index": 90, "value": 2.0}]},
        {"position": 1, "token_id": 2, "text": "b", "features": [{"index": 90, "value": 4.0}]},
        {"position": 2, "token_id": 3, "text": "c", "features": []},
    ]
    html = answer(EVIL, read)._repr_html_()
    assert "<script" not in html
    assert html.count(ESCAPED) == 2
    assert [f"rgba(255,140,0,{share})" in html for share in (0.5, 1.0, 0.0)] == [True] * 3


def test_a_comparison_is_two_columns_and_a_feature_a_card() -> None:
    compared = Comparison(
        model="m", system_fingerprint="f", prompt_tokens=1, sides=[side(0, "plain"), side(1, EVIL)]
    )._repr_html_()
    assert compared.count("<th ") == compared.count("<td ") == 2
    assert "intensity 1" in compared
    assert ESCAPED in compared
    card = Feature(
        sae_id="sae",
        feature_idx=90,
        label=EVIL,
        decoder_norm=1.0,
        encoder_norm=1.0,
        encoder_bias=0.0,
        threshold=None,
        layer=3,
        residual_norm=None,
        typical_strength=None,
        statistics=None,
        corpora=[],
    )._repr_html_()
    assert f"feature 90: {ESCAPED}" in card
    assert "threshold" not in card
    assert "corpora" not in card


def test_a_list_is_a_table_without_empty_columns(shared: Running) -> None:
    with Client(shared.url) as client:
        html = client.models.list()._repr_html_()
    assert "steerserve-demo" in html
    assert "error_message" not in html
    assert shown.table([{"a": EVIL, "b": None}]).count(ESCAPED) == 1
    assert shown.cell([{"token": " sea", "value": 0.73451}]) == "&#x27; sea&#x27; 0.735"
    assert shown.cell(1.20736002) == "1.20736"


def test_a_list_is_short_as_text(shared: Running) -> None:
    with Client(shared.url) as client:
        text = repr(client.models.list())
    first, second = text.splitlines()[:2]
    assert first.startswith("Listing of ")
    assert re.fullmatch(r"  ModelRecord\(id=\d+, name='.*', status='\w+', …\)", second)
    assert len(text) < 1000
    assert shown.listing([]) == "Listing of 0"
    assert shown.listing(["a"] * 12).splitlines()[-2:] == ["  'a'", "  and 2 more"]


def test_a_missing_pandas_is_said_by_its_name(
    shared: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "pandas", None)
    with Client(shared.url) as client, pytest.raises(ImportError, match="pandas"):
        client.models.list().to_pandas()


def test_a_table_of_pandas_has_a_row_for_each_entry(monkeypatch: Any) -> None:
    class Pandas:
        DataFrame = list

    monkeypatch.setitem(sys.modules, "pandas", Pandas)
    read = [{"position": 4, "token_id": 1, "text": "a", "features": [{"index": 9, "value": 2.0}]}]
    found = answer("a", read).activations
    assert found is not None
    assert found.to_pandas() == [{"position": 4, "token_id": 1, "text": "a", "9": 2.0}]
