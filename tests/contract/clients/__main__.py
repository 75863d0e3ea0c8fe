"""Real clients, each in an environment of its own, against the demo service: `make contract`.

Their requests go through a proxy that notes which of their fields the service does not use, and asks again in strict
mode. What came of it is written to docs/clients.md.
"""

from __future__ import annotations

import asyncio
import json
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import aiohttp
from aiohttp import web

from steerserve import demo
from tests.processes import free_port, serving

HERE = Path(__file__).parent
ROOT = HERE.parents[2]
NODE = HERE.parent / "node"
ENVIRONMENTS = ROOT / ".venv-clients"
PAGE = ROOT / "docs" / "clients.md"
CLIENT_SECONDS = 180
NOT_PASSED_ON = {"host", "content-length", "transfer-encoding", "connection", "accept-encoding"}
IGNORED, STRICT = "X-Service-Ignored-Fields", "X-Service-Strict"


@dataclass(frozen=True)
class Client:
    """A client and its script. Without `packages` it is one of the project's own development packages."""

    name: str
    script: Path
    packages: tuple[str, ...] = ()

    def command(self) -> list[str]:
        """What runs the script, in an environment that is made if it is not there."""
        if self.script.suffix == ".mjs":
            _installed(NODE / "node_modules", (NODE / "package.json").read_text(), _npm)
            return ["node", str(self.script)]
        if not self.packages:
            return [sys.executable, str(self.script)]
        folder = ENVIRONMENTS / self.name

        def install() -> None:
            _run(sys.executable, "-m", "venv", "--clear", str(folder))
            _run(str(folder / "bin" / "pip"), "install", "-q", *self.packages)

        _installed(folder, "\n".join(self.packages), install)
        return [str(folder / "bin" / "python"), str(self.script)]


LM_EVAL = ("lm-eval[api]==0.4.13", "transformers==5.23.0")
"""The harness reads the tokenizer with transformers; it needs no tensor library."""

DATASETS = ("datasets==5.2.0", "safetensors==0.8.0", "numpy==2.4.6")

CLIENTS = (
    Client("openai", HERE / "with_openai.py"),
    Client("litellm", HERE / "with_litellm.py"),
    Client("langchain-openai", HERE / "with_langchain.py"),
    Client("instructor", HERE / "with_instructor.py", ("instructor==1.17.0",)),
    Client("pydantic-ai", HERE / "with_pydantic_ai.py", ("pydantic-ai-slim[openai]==2.68.0",)),
    Client("llm", HERE / "with_llm.py", ("llm==0.36",)),
    Client("inspect-ai", HERE / "with_inspect.py", ("inspect-ai==0.3.285", "openai==3.52.0")),
    Client("lm-evaluation-harness", HERE / "with_lm_eval.py", LM_EVAL),
    Client("datasets", HERE / "with_datasets.py", DATASETS),
    Client("openai (npm)", NODE / "openai.mjs"),
    Client("AI SDK (npm)", NODE / "ai-sdk.mjs"),
)


@dataclass
class Found:
    """What one client did."""

    client: Client
    versions: dict[str, str] = field(default_factory=dict)
    calls: list[dict[str, Any]] = field(default_factory=list)
    unused: set[str] = field(default_factory=set)
    problems: list[str] = field(default_factory=list)


class Recorder:
    """A proxy before the service that remembers what was served, to ask the same in strict mode."""

    def __init__(self, service: str, session: aiohttp.ClientSession) -> None:
        self._service = service
        self._session = session
        self._served: list[tuple[str, bytes, dict[str, str], str]] = []

    async def pass_on(self, request: web.Request) -> web.StreamResponse:
        body = await request.read()
        headers = {n: v for n, v in request.headers.items() if n.lower() not in NOT_PASSED_ON}
        url = self._service + request.path_qs
        async with self._session.request(request.method, url, data=body, headers=headers) as told:
            if body and told.status == 200:
                self._served.append((url, body, headers, told.headers.get(IGNORED, "")))
            kept = {n: v for n, v in told.headers.items() if n.lower() not in NOT_PASSED_ON}
            answer = web.StreamResponse(status=told.status, headers=kept)
            with suppress(ConnectionResetError):  # clients close after `[DONE]`
                await answer.prepare(request)
                async for piece in told.content.iter_any():
                    await answer.write(piece)
                await answer.write_eof()
        return answer

    async def ask_strictly(self, found: Found) -> None:
        """Strict mode must refuse exactly what was reported, and serve what had nothing to report."""
        served, self._served = self._served, []
        for url, body, headers, ignored in served:
            strict = headers | {STRICT: "true"}
            async with self._session.post(url, data=body, headers=strict) as answer:
                refusal = (await answer.json())["error"] if answer.status == 400 else None
            fields = [] if refusal is None else refusal["details"]["fields"]
            if ", ".join(fields) != ignored:
                found.problems.append(f"reported {ignored!r}, in strict mode refused {refusal}")
            found.unused |= {re.sub(r"\[\d+\]", "[]", name) for name in fields}


async def main() -> int:
    commands = [client.command() for client in CLIENTS]
    reference = _output(sys.executable, str(HERE / "reference.py"))
    found = []
    with (
        tempfile.TemporaryDirectory() as folder,
        serving(Path(folder) / "service", command="demo", ready="is ready at") as service,
    ):
        async with (
            aiohttp.ClientSession() as session,
            _listening(recorder := Recorder(service.url, session)) as base,
        ):
            for client, command in zip(CLIENTS, commands, strict=True):
                found.append(one := Found(client))
                await _ask(one, command, f"{base}/v1", Path(folder), reference)
                await recorder.ask_strictly(one)
                _print(one)
    if any(one.problems for one in found):
        return 1
    PAGE.write_text(page(found), encoding="utf-8")
    return 0


def environment(base: str, home: Path, reference: str) -> dict[str, str]:
    """What a client's script reads, and switches for requests of the clients to other services (price lists, traces)."""
    return {
        "SERVICE_BASE_URL": base,
        "SERVICE_MODEL": demo.MODEL_NAME,
        "SERVICE_TOKENIZER": str(demo.MODEL_DIR),
        "SERVICE_REFERENCE": reference,
        "HOME": str(home),
        "LLM_USER_PATH": str(home / "llm"),
        "LITELLM_LOCAL_MODEL_COST_MAP": "True",
        "LANGSMITH_TRACING": "false",
    }


async def _ask(found: Found, command: list[str], base: str, folder: Path, reference: str) -> None:
    """Run a client's script in a home of its own, and read what it tells."""
    home = Path(tempfile.mkdtemp(dir=folder))
    process = await asyncio.create_subprocess_exec(
        *command,
        cwd=home,
        env=os.environ | environment(base, home, reference),
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    async with asyncio.timeout(CLIENT_SECONDS):
        out, err = await process.communicate()
    for line in out.decode().splitlines():
        told = json.loads(line) if line.startswith("{") else {}
        found.versions |= told.get("versions", {})
        if "call" in told:
            found.calls.append(told)
            if told["problem"]:
                found.problems.append(f"{told['call']}: {told['problem']}")
    if (process.returncode and not found.problems) or not found.calls:
        found.problems.append(err.decode()[-2000:])


@asynccontextmanager
async def _listening(recorder: Recorder) -> AsyncIterator[str]:
    application = web.Application(client_max_size=1 << 24)
    application.router.add_route("*", "/{path:.*}", recorder.pass_on)
    runner = web.AppRunner(application)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", port := free_port())
    await site.start()
    try:
        yield f"http://127.0.0.1:{port}"
    finally:
        await runner.cleanup()


def page(found: list[Found]) -> str:
    """docs/clients.md."""
    lines = [
        "# Clients",
        "",
        "<!-- Written by `make contract`; edit tests/contract instead. -->",
        "",
        "This page lists which ordinary calls of popular clients work. Each call was run against the demo service, with the",
        "version of the client that is named. Clients of the OpenAI API take the base URL `http://127.0.0.1:8000/v1` and any API",
        "key. A refused call is answered with status 400, or with 404 for an unknown route.",
        "",
        "Fields that the service does not use are accepted, change nothing, and are listed in the header",
        "`X-Service-Ignored-Fields` of the answer. With `X-Service-Strict: true` they are refused instead",
        "([more](inference.md#fields-that-are-not-used)).",
    ]
    for one in found:
        versions = ", ".join(f"{name} {version}" for name, version in one.versions.items())
        works = [call["call"] for call in one.calls if "says" not in call]
        refused = [call for call in one.calls if "says" in call]
        unused = ", ".join(f"`{name}`" for name in sorted(one.unused)) or "none"
        lines += [
            "",
            f"## {one.client.name}",
            "",
            f"{versions}. Fields that it sends and the service does not use: {unused}.",
            "",
        ]
        lines += [f"- works: {'; '.join(works)}"]
        lines += [f"- refused: {call['call']}; use {call['instead']}" for call in refused]
    return "\n".join(lines) + "\n"


def _print(found: Found) -> None:
    print(f"{found.client.name} {found.versions}; not used: {sorted(found.unused)}")
    for call in found.calls:
        verdict = "FAILED" if call["problem"] else "refused" if "says" in call else "works"
        print(f"  {verdict:8} {call['call']}")
    for problem in found.problems:
        print(problem, file=sys.stderr)


def _installed(folder: Path, wanted: str, install: Any) -> None:
    """Install unless it was done for the same packages before."""
    stamp = folder / ".installed"
    if not stamp.exists() or stamp.read_text() != wanted:
        install()
        stamp.write_text(wanted)


def _npm() -> None:
    _run("npm", "install", "--silent", "--prefix", str(NODE))


def _run(*command: str) -> None:
    subprocess.run(command, check=True)


def _output(*command: str) -> str:
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()


if __name__ == "__main__":
    sys.exit(asyncio.run(main()))
