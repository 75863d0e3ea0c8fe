"""The files of deploy/: each is checked by the program that reads it, where that is installed here, and against the
service."""

from __future__ import annotations

import asyncio
import getpass
import json
import os
import re
import shlex
import shutil
import socket
import ssl
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from fnmatch import fnmatch
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import aiohttp
import httpx2
import pytest
import yaml
from aiohttp.abc import AbstractResolver
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec

from steerserve.settings import Settings
from tests.service import Running, running

ROOT = Path(__file__).parent.parent
DEPLOY = ROOT / "deploy"
NOT_SETTINGS = {"XDG_CACHE_HOME"}
NGINX = os.environ.get("NGINX") or shutil.which("nginx")
NAME = "models.example.org"


def are_settings(names: set[str]) -> bool:
    return {name.lower() for name in names - NOT_SETTINGS} <= set(Settings.model_fields)


# ------------------------------------------------------------------------------------------------------------- Docker


@pytest.fixture(scope="module")
def steps() -> list[tuple[str, str]]:
    """The instructions of the Dockerfile with their arguments."""
    text = (DEPLOY / "docker" / "Dockerfile").read_text(encoding="utf-8")
    code = re.sub(r"^#.*\n", "", text, flags=re.MULTILINE).replace("\\\n", " ")
    return [(line.split(None, 1)[0], line.split(None, 1)[1]) for line in code.splitlines() if line]


def test_the_image_runs_the_service_as_a_user_with_few_rights(steps: list[tuple[str, str]]) -> None:
    last = max(at for at, (name, _) in enumerate(steps) if name == "FROM")
    final = steps[last:]
    assert dict(final)["USER"] == "steerserve"
    assert [name for name, _ in final][-1] == "CMD"
    command = json.loads(dict(final)["CMD"])
    assert (
        subprocess.run([sys.executable, "-m", *command, "--help"], capture_output=True).returncode
        == 0
    )
    variables = dict(word.split("=", 1) for word in shlex.split(dict(final)["ENV"]))
    assert are_settings(set(variables))
    assert dict(final)["VOLUME"] == variables["STEERSERVE_HOME"]
    assert dict(final)["EXPOSE"] == variables["PORT"]
    for name, argument in steps:
        if name == "RUN":
            subprocess.run(["sh", "-n", "-c", argument], check=True)
        elif name == "COPY" and not argument.startswith("--from"):
            assert (ROOT / argument.split()[0]).exists(), argument
    # the version comes from git, which misses a file of its own that is not copied
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True)
    lines = (ROOT / ".dockerignore").read_text(encoding="utf-8").splitlines()
    ignored = [line for line in lines if line and not line.startswith("#")]
    assert not [path for path in listed.stdout.split("\0") if is_ignored(path, ignored)]


def is_ignored(path: str, patterns: list[str]) -> bool:
    """Whether Docker leaves a file out: a pattern is that of a path from the top, or after `**/` of any name."""
    above = [path, *map(str, Path(path).parents)]
    return any(
        fnmatch(each.rpartition("/")[2] if one.startswith("**/") else each, one.removeprefix("**/"))
        for each in above
        for one in patterns
    )


def test_the_image_is_healthy_while_the_service_answers(
    steps: list[tuple[str, str]], shared: Running
) -> None:
    (argument,) = (argument for name, argument in steps if name == "HEALTHCHECK")
    _, *command = json.loads(argument.partition(" CMD ")[2])
    with socket.socket() as nobody:
        nobody.bind(("127.0.0.1", 0))
        ports = [httpx2.URL(shared.url).port, nobody.getsockname()[1]]
        codes = [
            subprocess.run(
                [sys.executable, *command],
                env=os.environ | {"PORT": str(port)},
                stderr=subprocess.DEVNULL,
            ).returncode
            for port in ports
        ]
    assert codes == [0, 1]


def test_the_compose_file_names_settings_secrets_and_the_dockerfile() -> None:
    folder = DEPLOY / "docker"
    document: dict[str, Any] = yaml.safe_load((folder / "compose.yaml").read_text(encoding="utf-8"))
    service = document["services"]["steerserve"]
    assert are_settings(set(service["environment"]))
    assert set(service["secrets"]) == set(document["secrets"])
    assert all(
        f"/run/secrets/{name}" in service["environment"].values() for name in service["secrets"]
    )
    context = (folder / service["build"]["context"]).resolve()
    assert context == ROOT
    assert (context / service["build"]["dockerfile"]).is_file()
    assert int(service["stop_grace_period"].rstrip("s")) > Settings().graceful_shutdown_timeout


# ------------------------------------------------------------------------------------------------------------ systemd


def test_systemd_accepts_the_unit(tmp_path: Path) -> None:
    text = (DEPLOY / "systemd" / "steerserve.service").read_text(encoding="utf-8")
    values = re.findall(r"^(?:# )?Environment=(.*)$", text, re.MULTILINE)
    assert are_settings({word.partition("=")[0] for value in values for word in value.split()})
    (timeout,) = re.findall(r"^TimeoutStopSec=(\d+)$", text, re.MULTILINE)
    assert int(timeout) > Settings().graceful_shutdown_timeout
    if shutil.which("systemd-analyze") is None:
        pytest.skip("systemd is not installed here")
    program = re.search(r"^ExecStart=(\S+)", text, re.MULTILINE)
    assert program is not None
    unit = tmp_path / "steerserve.service"
    unit.write_text(text.replace(program[1], sys.executable))
    found = subprocess.run(["systemd-analyze", "verify", unit], capture_output=True, text=True)
    assert (found.returncode, found.stderr) == (0, "")


# -------------------------------------------------------------------------------------------------------------- nginx


@contextmanager
def nginx_before(upstream: str, folder: Path) -> Iterator[Outside]:
    """A real nginx with the site of deploy/, whose addresses and files are replaced."""
    if NGINX is None:
        pytest.skip("nginx is not installed here; the variable NGINX names one")
    certificate, key = write_certificate(folder)
    with socket.socket() as plain, socket.socket() as secure:
        for each in (plain, secure):
            each.bind(("127.0.0.1", 0))
        http, https = plain.getsockname()[1], secure.getsockname()[1]
    site = (DEPLOY / "nginx" / "steerserve.conf").read_text(encoding="utf-8")
    replaced = {
        "    listen [::]:80;\n": "",
        "    listen [::]:443 ssl;\n": "",
        "listen 80;": f"listen 127.0.0.1:{http};",
        "listen 443 ssl;": f"listen 127.0.0.1:{https} ssl;",
        "server 127.0.0.1:8000;": f"server {upstream};",
        f"/etc/letsencrypt/live/{NAME}/fullchain.pem": str(certificate),
        f"/etc/letsencrypt/live/{NAME}/privkey.pem": str(key),
    }
    for old, new in replaced.items():
        assert old in site
        site = site.replace(old, new)
    kinds = ("client_body", "proxy", "fastcgi", "uwsgi", "scgi")
    temporary = "".join(f"{kind}_temp_path {folder}/{kind};\n" for kind in kinds)
    user = f"user {getpass.getuser()};\n" if os.getuid() == 0 else ""
    (folder / "nginx.conf").write_text(
        f"{user}daemon off;\npid {folder}/pid;\nerror_log stderr;\nevents {{}}\n"
        f"http {{\naccess_log off;\n{temporary}{site}}}\n"
    )
    with subprocess.Popen(
        [NGINX, "-p", folder, "-c", folder / "nginx.conf"], stderr=subprocess.PIPE, text=True
    ) as process:
        try:
            wait_for(https, process)
            yield Outside(https, certificate)
        finally:
            process.terminate()


@dataclass(frozen=True)
class Outside:
    """What a client on another machine knows: the name and the port of the proxy, and its certificate."""

    port: int
    certificate: Path

    def client(self) -> aiohttp.ClientSession:
        context = ssl.create_default_context(cafile=str(self.certificate))
        connector = aiohttp.TCPConnector(ssl=context, resolver=ThisMachine())
        return aiohttp.ClientSession(self.url, connector=connector)

    @property
    def url(self) -> str:
        return f"https://{NAME}:{self.port}"


class ThisMachine(AbstractResolver):
    """Resolves every name to this machine."""

    async def resolve(self, host: str, port: int = 0, family: Any = socket.AF_INET) -> list[Any]:
        place = {"hostname": host, "host": "127.0.0.1", "port": port}
        return [{**place, "family": socket.AF_INET, "proto": 0, "flags": 0}]

    async def close(self) -> None: ...


def write_certificate(folder: Path) -> tuple[Path, Path]:
    private = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, NAME)])
    now = datetime.now(UTC)
    names = x509.SubjectAlternativeName([x509.DNSName(NAME)])
    made = x509.CertificateBuilder().subject_name(name).issuer_name(name).serial_number(1)
    made = made.public_key(private.public_key()).add_extension(names, critical=False)
    made = made.not_valid_before(now - timedelta(hours=1)).not_valid_after(now + timedelta(days=1))
    certificate, key = folder / "certificate.pem", folder / "key.pem"
    encoded, plain = serialization.Encoding.PEM, serialization.NoEncryption()
    certificate.write_bytes(made.sign(private, hashes.SHA256()).public_bytes(encoded))
    key.write_bytes(private.private_bytes(encoded, serialization.PrivateFormat.PKCS8, plain))
    return certificate, key


def wait_for(port: int, process: subprocess.Popen[str]) -> None:
    """Wait until nginx listens."""
    while process.poll() is None:
        with socket.socket() as probe:
            if probe.connect_ex(("127.0.0.1", port)) == 0:
                return
    assert process.stderr is not None
    pytest.fail(process.stderr.read())


def test_nginx_lets_keys_browsers_and_live_events_through(tmp_path: Path) -> None:
    """As the page says, with `ALLOWED_HOSTS` and `TRUSTED_PROXIES` set and keys."""
    settings: dict[str, Any] = {
        "api_keys": "a-key",
        "allowed_hosts": NAME,
        "trusted_proxies": "127.0.0.1",
    }
    key = {"Authorization": "Bearer a-key"}
    reset = "/api/health/circuits/huggingface/reset"

    async def ask(outside: Outside) -> list[int]:
        browser = key | {"Origin": outside.url, "Sec-Fetch-Site": "same-origin"}
        codes = []
        async with outside.client() as client:
            for headers in ({}, browser):
                async with client.post(reset, headers=headers) as answer:
                    codes.append(answer.status)
            address = "/socket.io/?EIO=4&transport=websocket"
            async with client.ws_connect(address, headers=key) as live:
                assert (await live.receive_str()).startswith("0{")
        return codes

    with (
        running(tmp_path / "home", **settings) as service,
        nginx_before(service.url.removeprefix("http://"), tmp_path) as outside,
    ):
        assert asyncio.run(ask(outside)) == [401, 200]


def test_nginx_hands_the_events_of_a_stream_on_at_once(tmp_path: Path) -> None:
    """The server of this test sends the second event when the client has the first one."""
    arrived, forwarded = threading.Event(), []

    class Stream(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            forwarded.append((self.headers["Host"], self.headers["X-Forwarded-For"]))
            self.send_response(200)
            self.send_header("Content-Type", "text/event-stream")
            self.end_headers()
            self.wfile.write(b"data: first\n\n")
            assert arrived.wait(30)
            self.wfile.write(b"data: second\n\n")

        def log_message(self, *_: object) -> None: ...

    async def read(outside: Outside) -> bytes:
        async with outside.client() as client, client.get("/v1/stream") as answer:
            first = await answer.content.readuntil(b"\n\n")
            arrived.set()
            return first + await answer.content.read()

    with ThreadingHTTPServer(("127.0.0.1", 0), Stream) as server:
        threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True).start()
        try:
            with nginx_before(f"127.0.0.1:{server.server_port}", tmp_path) as outside:
                assert asyncio.run(read(outside)) == b"data: first\n\ndata: second\n\n"
                assert forwarded == [(f"{NAME}:{outside.port}", "127.0.0.1")]
        finally:
            arrived.set()
            server.shutdown()
