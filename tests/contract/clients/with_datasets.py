"""A folder of `POST /api/captures`, opened with `safetensors` and `datasets` by the lines that docs/captures.md shows."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any
from urllib.request import Request, urlopen

os.environ |= {"HF_HUB_OFFLINE": "1", "HF_DATASETS_OFFLINE": "1"}

from pages import run
from told import BASE_URL, Calls

CAPTURES = f"{BASE_URL.removesuffix('/v1')}/api/captures"
ASKED = {
    "name": "opened",
    "texts": ["The boat sailed over the waves", "The king sat on the throne"],
    "sites": [{"site": "resid_post", "layers": [1, 3]}],
}

calls = Calls("datasets", "safetensors")


def answer(url: str, body: Any = None) -> bytes:
    content = None if body is None else json.dumps(body).encode()
    asked = Request(url, content, {"content-type": "application/json"})
    with urlopen(asked) as response:
        return bytes(response.read())


@calls.works("`load_dataset` of the index of a capture, with the values as a column")
def opened() -> None:
    job = json.loads(answer(f"{CAPTURES}?wait=true", ASKED))["data"]["job"]
    capture = f"{CAPTURES}/{job['result']['capture_id']}"
    folder = Path("folder")
    folder.mkdir()
    for file in json.loads(answer(capture))["data"]["files"]:
        (folder / file["name"]).write_bytes(answer(f"{capture}/files/{file['name']}"))
    names = run("../captures.md", BASE_URL.removesuffix("/v1"))
    data, values = names["data"], names["values"]
    lines = [json.loads(line) for line in (folder / "index.jsonl").read_text().splitlines()]
    assert len(data) == len(lines) == len(values) > 10
    for row, line, value in zip(data, lines, values, strict=True):
        assert (row["text"], row["position"], row["token"]) == (
            line["text"],
            line["position"],
            line["token"],
        )
        assert (row["activation"] == value).all()


calls.tell()
