"""A package that is installed beside the service adds an option of requests, without a change to the service."""

from __future__ import annotations

import os
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx2
import pytest

from steerserve import demo
from tests.parts import outside
from tests.processes import serving
from tests.service import ANSWER_SECONDS

TOKENS = 8


@pytest.fixture(scope="module")
def live(tmp_path_factory: pytest.TempPathFactory) -> Iterator[httpx2.Client]:
    """A client of a service beside which the package is installed."""
    root = tmp_path_factory.mktemp("outside")
    outside.install(root / "packages")
    path = os.pathsep.join([str(root / "packages"), os.environ.get("PYTHONPATH", "")])
    with serving(root / "home", pythonpath=path) as process:
        process.load_demo()
        with httpx2.Client(base_url=process.url, timeout=ANSWER_SECONDS) as client:
            yield client


def body(**fields: Any) -> dict[str, Any]:
    text = {"model": demo.MODEL_NAME, "prompt": "One day", "max_tokens": TOKENS, "temperature": 0}
    return text | fields


def test_the_answer_has_what_the_part_tells(live: httpx2.Client) -> None:
    answer = live.post("/v1/completions", json=body(return_entropy={"most": TOKENS})).json()
    (entropies,) = answer["service"]["entropy"]
    assert len(entropies) == answer["usage"]["completion_tokens"] == TOKENS
    assert all(entropy > 0 for entropy in entropies)


def test_an_error_of_the_part_ends_its_own_request_alone(live: httpx2.Client) -> None:
    def ask(most: int) -> Any:
        return live.post("/v1/completions", json=body(return_entropy={"most": most}))

    with ThreadPoolExecutor() as pool:
        whole, broken, other = pool.map(ask, (TOKENS, 3, TOKENS))
    assert broken.status_code == 500
    assert broken.json()["error"]["code"] == "internal_error"
    assert whole.json()["service"] == other.json()["service"]


def test_a_wrong_value_is_refused_by_the_place_of_the_field(live: httpx2.Client) -> None:
    answer = live.post("/v1/completions", json=body(return_entropy={"most": "all"}))
    assert answer.status_code == 400
    assert answer.json()["error"]["param"] == "return_entropy.most"


def test_the_description_of_the_api_has_the_field_and_what_is_told(live: httpx2.Client) -> None:
    described = live.get("/openapi.json").json()
    for route in ("/v1/completions", "/v1/chat/completions", "/v1/responses"):
        sent = described["paths"][route]["post"]["requestBody"]["content"]["application/json"][
            "schema"
        ]
        assert "return_entropy" in sent["properties"]
    told = described["components"]["schemas"]["ServiceBlock"]["properties"]
    assert "entropy" in told
