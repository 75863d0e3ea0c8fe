"""The clients that are installed with the service, against a running service. `make contract` runs the other ones too."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

import httpx2
import pytest

import openai
from steerserve import demo
from tests.contract.clients import __main__ as contract
from tests.service import Running, add_model

INSTALLED = [
    client for client in contract.CLIENTS if client.script.suffix == ".py" and not client.packages
]


@pytest.mark.shows("overview.3")
@pytest.mark.parametrize("client", INSTALLED, ids=lambda client: client.name)
def test_each_call_of_a_client_works_or_is_refused_as_the_page_says(
    steered: Running, client: contract.Client, tmp_path: Path
) -> None:
    ran = subprocess.run(
        client.command(),
        cwd=tmp_path,
        env=os.environ | contract.environment(f"{steered.url}/v1", tmp_path, reference="null"),
        capture_output=True,
        text=True,
        timeout=contract.CLIENT_SECONDS,
    )
    told = [json.loads(line) for line in ran.stdout.splitlines() if line.startswith("{")]
    problems = [call["problem"] for call in told if call.get("problem")]
    assert (ran.returncode, problems) == (0, []), "\n".join([ran.stderr, *problems])
    assert len(told) > 1


def test_the_official_client_does_not_repeat_what_repeating_cannot_change(shared: Running) -> None:
    """The client repeats a 409 by itself; `x-should-retry: false` is why it does not here."""
    sent: list[httpx2.Request] = []
    recording = httpx2.Client(event_hooks={"request": [sent.append]})
    other = add_model(shared, demo.MODEL_DIR, "another", quantization="Q8")
    try:
        with (
            openai.OpenAI(
                base_url=f"{shared.url}/v1", api_key="any", http_client=recording
            ) as client,
            pytest.raises(openai.ConflictError) as refused,
        ):
            client.chat.completions.create(
                model="another",
                messages=[{"role": "user", "content": "Hello"}],
                extra_headers={"X-Service-Load-Policy": "refuse"},
            )
    finally:
        shared.data("DELETE", f"/api/models/{other}")
    assert refused.value.code == "model_not_resident"
    assert len(sent) == 1
