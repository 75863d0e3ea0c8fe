"""Headers of safetensors files, read from the hub without the files."""

from __future__ import annotations

import json
import struct
from typing import Any

import pytest

from steerserve.hub.client import Hub
from steerserve.hub.header import TENSORS, fetch_header
from steerserve.hub.session import Session, troubles
from steerserve.hub.wire import Headers, Kind, Trouble
from steerserve.rules.bounds import HUB_HEADERS_KEPT
from steerserve.rules.models.precision import StoredTensor
from steerserve.rules.models.repository import RepoFile
from tests.hub.conftest import MakeHub
from tests.loopback_hub import LoopbackHub
from tests.refusals import refused

REPO = "acme/saes"
PATH = "layers.1/sae.safetensors"


def file(header: dict[str, Any] | bytes, data: int, length: int | None = None) -> bytes:
    """A safetensors file with this header, and so many bytes of tensors."""
    raw = header if isinstance(header, bytes) else json.dumps(header).encode()
    return struct.pack("<Q", len(raw) if length is None else length) + raw + b"\1" * data


def entry(shape: list[Any], begin: int, end: int, dtype: str = "F32") -> dict[str, Any]:
    return {"dtype": dtype, "shape": shape, "data_offsets": [begin, end]}


GOOD = {
    "__metadata__": {"format": "pt"},
    "W_dec": entry([64, 16], 0, 4096),
    "b_dec": entry([16], 4096, 4160),
}


async def header(hub: Hub, loopback: LoopbackHub, content: bytes, token: str | None = None) -> Any:
    loopback.add(REPO, {PATH: content, "README.md": b"x"})
    found = await hub.describe(REPO)
    (wanted,) = [f for f in found.files if f.path == PATH]
    return (await hub.header(REPO, found.sha, wanted, token)).tensors


async def test_a_header_is_read_by_range_and_nothing_else_is_fetched(
    make_hub: MakeHub, loopback: LoopbackHub
) -> None:
    tensors = await header(make_hub(), loopback, file(GOOD, 4160))
    assert tensors == (
        StoredTensor("W_dec", "F32", (64, 16), 4096),
        StoredTensor("b_dec", "F32", (16,), 64),
    )
    asked = loopback.asked(f"/{PATH}")
    assert [seen.range for seen in asked] == ["bytes=0-65535"]


async def test_the_headers_that_were_read_last_are_kept(
    make_hub: MakeHub, loopback: LoopbackHub
) -> None:
    paths = [f"{n}.safetensors" for n in range(HUB_HEADERS_KEPT + 1)]
    loopback.add(REPO, dict.fromkeys(paths, file(GOOD, 4160)))
    hub = make_hub()
    found = await hub.describe(REPO)
    for path in (*paths, paths[-1], paths[0]):
        (wanted,) = [f for f in found.files if f.path == path]
        await hub.header(REPO, found.sha, wanted)
    assert [len(loopback.asked(f"/{path}")) for path in paths] == [2, *[1] * HUB_HEADERS_KEPT]


async def test_a_long_header_is_asked_for_in_two_parts(
    make_hub: MakeHub, loopback: LoopbackHub
) -> None:
    many = {f"{'x' * 100}{n}": entry([1], 4 * n, 4 * n + 4) for n in range(1000)}
    content = file(many, 4000)
    tensors = await header(make_hub(), loopback, content)
    assert len(tensors) == 1000
    begin = len(content) - 4000
    assert [s.range for s in loopback.asked(f"/{PATH}")] == [
        "bytes=0-65535",
        f"bytes=65536-{begin - 1}",
    ]


async def test_a_hub_that_ignores_ranges_is_read_no_further_than_needed(
    make_hub: MakeHub, loopback: LoopbackHub
) -> None:
    whole = file({"W_dec": entry([1 << 20], 0, 4 << 20)}, 4 << 20)
    fault = loopback.fault(f"/{PATH}", status=200, body=whole)
    tensors = await header(make_hub(), loopback, whole)
    assert [t.shape for t in tensors] == [(1 << 20,)]
    assert fault.times < 1_000_000


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"\1\2\3",
        file(GOOD, 4160, length=0),
        file(GOOD, 4160, length=1 << 62),
        file(GOOD, 4160, length=1 << 63),
        file(GOOD, 4160, length=5 << 20),
        file(GOOD, 100),
        file(b"[" * 50_000, 10),
        file(b"[1, 2]", 10),
        file(b'{"a": 3}', 10),
        file({"W_dec": entry([-1], 0, 4)}, 4),
        file({"W_dec": entry([1 << 50, 1 << 50], 0, 4)}, 4),
        file({"W_dec": entry([True], 0, 4)}, 4),
        file({"W_dec": entry([1], 0, 4, "EVIL")}, 4),
        file({f"t{n}": entry([0], 0, 0) for n in range(TENSORS + 1)}, 0),
        file(b"\xff\xfe{}", 10),
    ],
)
def test_a_hostile_header_is_refused(loopback: LoopbackHub, content: bytes) -> None:
    sha = loopback.add(REPO, {PATH: content}).sha
    session = Session(loopback.url, None, 10)
    with troubles(has_token=False), pytest.raises(Trouble) as trouble:
        fetch_header(Headers(REPO, sha, RepoFile(PATH, len(content), None)), session)
    assert trouble.value.kind is Kind.FAILED


async def test_a_damaged_header_is_a_failed_download(
    make_hub: MakeHub, loopback: LoopbackHub
) -> None:
    refusal = await refused(header(make_hub(), loopback, file(b'{"\\ud800": 3}', 10)))
    assert refusal.code == "DOWNLOAD_FAILED"


async def test_a_hub_that_fails_counts_against_the_breaker(
    make_hub: MakeHub, loopback: LoopbackHub
) -> None:
    hub = make_hub()
    loopback.fault(f"/{PATH}", status=500)
    assert (await refused(header(hub, loopback, file(GOOD, 4160)))).code == "HUB_UNAVAILABLE"
    assert hub.breakers()[0].failure_count == 1
