"""The composition root: builds every object once, wires it, and is the ASGI application."""

from __future__ import annotations

import asyncio
import json
import os
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from typing import Any

import structlog
from fastapi import FastAPI
from fastapi.exceptions import RequestValidationError
from socketio import ASGIApp
from starlette.exceptions import HTTPException
from starlette.middleware.cors import CORSMiddleware
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Match, Route
from starlette.types import ASGIApp as Application
from starlette.types import Receive, Scope, Send

from steerserve import __version__, log
from steerserve import startup as demo
from steerserve.api import attachments as attachment_routes
from steerserve.api import compare as compare_routes
from steerserve.api import envelope
from steerserve.api import features as feature_routes
from steerserve.api import health as health_routes
from steerserve.api import leases as lease_routes
from steerserve.api import models as model_routes
from steerserve.api import monitoring as monitoring_routes
from steerserve.api import profiles as profile_routes
from steerserve.api import saes as sae_routes
from steerserve.api import steering as steering_routes
from steerserve.control import retry
from steerserve.control.bus import Bus
from steerserve.control.interventions.attachments import Attachments
from steerserve.control.interventions.profiles import Profiles
from steerserve.control.interventions.steering import Steering
from steerserve.control.library.model_downloads import HubModels
from steerserve.control.library.models import Registry
from steerserve.control.library.sae_downloads import HubSaes
from steerserve.control.library.saes import Saes
from steerserve.control.metrics import Metrics
from steerserve.control.observing.features import Features
from steerserve.control.observing.monitoring import Monitoring
from steerserve.control.requests.compare import Compare
from steerserve.control.requests.generate import Generation
from steerserve.control.requests.queue import Queue
from steerserve.control.residency.conductor import Conductor
from steerserve.control.residency.engines import Engines
from steerserve.control.vitals.cards import Cards, torch_version
from steerserve.control.vitals.gauges import Gauges
from steerserve.control.vitals.health import Vitals
from steerserve.engine.sandbox.schemas import Checker
from steerserve.errors import Refusal
from steerserve.guards import Guards
from steerserve.hub.client import Hub
from steerserve.hub.downloads import Downloads
from steerserve.live import Live
from steerserve.meter import Meter, is_counted
from steerserve.settings import Settings
from steerserve.store.catalog import Catalog
from steerserve.store.db import Database
from steerserve.store.documents import Documents
from steerserve.store.labels import Labels
from steerserve.v1 import bodies, render
from steerserve.v1 import chat as chat_routes
from steerserve.v1 import completions as completion_routes
from steerserve.v1 import embeddings as embedding_routes
from steerserve.v1 import models as v1_model_routes

_CODES = {404: "NOT_FOUND", 405: "METHOD_NOT_ALLOWED", 413: "PAYLOAD_TOO_LARGE"}
"""Codes of what the framework itself refuses."""

logger = structlog.get_logger(__name__)


class Service:
    """The whole service as one ASGI application.

    Args:
        settings: read from the environment unless given.
    """

    def __init__(self, settings: Settings | None = None) -> None:
        self.settings = settings or Settings()
        # what was read is kept from every child process
        for name in [name for name in os.environ if name.upper() == "HUB_TOKEN"]:
            del os.environ[name]
        log.configure(self.settings.log_level, self.settings.log_format)
        self.bus = Bus()
        self.metrics = Metrics()
        self.bus.subscribe(self.metrics.took)
        self.cards = Cards(torch_version=torch_version())
        self.hub = Hub(self.settings)
        self.launcher = Engines(self.settings)
        self.database = Database(self.settings.database_url)
        self.catalog = Catalog(self.database)
        self.conductor = Conductor(self.settings, self.catalog, self.launcher, self.bus)
        self.attachments = Attachments(self.conductor, self.bus, self.catalog, self.settings)
        self.steering = Steering(self.conductor, self.bus)
        self.profiles = Profiles(Documents(self.database), self.steering, self.conductor)
        self.conductor.renew = self.steering.renew
        self.conductor.restoring.steering = self.steering
        self.monitoring = Monitoring(self.conductor, self.bus)
        self.queue = Queue(
            self.settings.max_concurrent_requests,
            self.settings.max_pending_requests,
            self.settings.queue_duration_window,
        )
        self.checker = Checker()
        self.generation = Generation(
            self.settings,
            self.catalog,
            self.conductor,
            self.queue,
            self.profiles,
            self.checker,
            lambda: self.steering.live,
            self.metrics,
            lambda: self.monitoring.key() is not None,
        )
        self.downloads = Downloads(self.hub)
        self.hub_models = HubModels(self.settings, self.catalog, self.hub, self.bus, self.downloads)
        self.registry = Registry(self.catalog, self.conductor, self.hub_models)
        self.labels = Labels(self.database)
        self.saes = Saes(self.catalog, self.conductor, self.launcher, self.labels)
        self.hub_saes = HubSaes(
            self.settings, self.catalog, self.hub, self.bus, self.downloads, self.saes
        )
        self.vitals = Vitals(
            self.settings,
            self.database,
            self.conductor,
            self.queue,
            self.generation,
            self.cards,
            self.hub,
            self.launcher.failure,
            self._active_profile,
        )
        self.gauges = Gauges(
            self.metrics,
            self.conductor,
            self.queue,
            self.cards,
            self.hub,
            lambda: self.steering.live,
            self.monitoring.watched,
        )
        self.features = Features(
            self.labels, self.saes, self.conductor, self.launcher, self.monitoring.counted
        )
        self.live = Live(self.bus, self.settings, self.cards)
        self._known: list[BaseRoute] = []
        self.api = self._routes()
        self._app = self._guarded()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await self._app(scope, receive, send)

    async def drain(self) -> None:
        """Refuse newcomers and wait for the requests in flight, at most GRACEFUL_SHUTDOWN_TIMEOUT; what is left is
        ended with an error event."""
        self.generation.is_closing = self.conductor.is_closing = True
        logger.info("draining", in_flight=self.generation.active)
        deadline = asyncio.get_running_loop().time() + self.settings.graceful_shutdown_timeout
        while self.generation.active and asyncio.get_running_loop().time() < deadline:
            await asyncio.sleep(0.02)
        await self.conductor.close()

    # ------------------------------------------------------------- inside

    async def _active_profile(self) -> dict[str, Any] | None:
        row = await self.profiles.active() if self.profiles.active_id else None
        if row is None:
            return None
        kept = ("id", "name", "source_kind", "intensity")
        return {name: getattr(row, name) for name in kept} | {"sensing_enabled": False}

    def _routes(self) -> FastAPI:
        app = FastAPI(
            title="steerserve",
            version=__version__,
            lifespan=self._lifespan,
            redirect_slashes=False,
            docs_url=None,
            redoc_url=None,
        )
        door = render.Door(
            self.generation,
            self.settings.ignored_fields_header_max_bytes,
            self.settings.enable_continuous_batching,
            lambda refusal: retry.seconds(self.settings, refusal, refusal.row.v1),
            self.metrics,
            self.features.labels,
        )
        for inference in (
            chat_routes.router(self.settings, door),
            completion_routes.router(self.settings, door),
            embedding_routes.router(self.settings, door),
            v1_model_routes.router(self.generation),
        ):
            app.include_router(inference, responses=bodies.RESPONSES)
            self._known += inference.routes
        for management in (
            model_routes.router(self.registry, self.hub_models, self.conductor),
            lease_routes.router(self.registry, self.conductor),
            steering_routes.router(self.steering),
            monitoring_routes.router(self.monitoring, self.features.labels),
            feature_routes.router(self.features),
            attachment_routes.router(
                self.saes,
                self.conductor,
                self.attachments,
                self.steering,
                self.settings.multisae_vram_envelope_mb,
                self.monitoring.key,
            ),
            sae_routes.router(
                self.saes,
                self.hub_saes,
                lambda: attachment_routes.attachment_status(
                    self.conductor, self.steering, self.monitoring.key
                ),
            ),
            compare_routes.router(
                Compare(
                    self.generation,
                    self.conductor,
                    lambda: self.steering.live,
                    self.features.labels,
                ),
                self.settings,
            ),
            profile_routes.router(self.profiles),
            health_routes.router(self.vitals, self.gauges),
        ):
            app.include_router(management, responses=envelope.RESPONSES)
            self._known += management.routes
        app.add_exception_handler(Refusal, self._on_refusal)
        app.add_exception_handler(RequestValidationError, self._on_invalid)
        app.add_exception_handler(HTTPException, self._on_http)
        app.add_exception_handler(ClientDisconnect, _on_client_gone)
        app.add_exception_handler(Exception, self._on_bug)
        return app

    def _guarded(self) -> Application:
        inner: Application = ASGIApp(self.live.server, other_asgi_app=self.api)
        if self.settings.cors_origins:
            inner = CORSMiddleware(
                inner,
                allow_origins=self.settings.cors_origins,
                allow_methods=["*"],
                allow_headers=["*"],
                expose_headers=["*"],
            )
        return Meter(Guards(inner, self.settings, self.answer), self.metrics)

    @asynccontextmanager
    async def _lifespan(self, _: FastAPI) -> AsyncIterator[None]:
        await self.database.open()
        # for the bodies that may not ask the driver themselves
        self.cards.begin()
        starting = asyncio.create_task(self._start())
        try:
            yield
        finally:
            self.live.system.close()
            starting.cancel()
            with suppress(asyncio.CancelledError):
                await starting
            # nothing more is read or loaded
            self.conductor.is_closing = True
            await self.downloads.close()
            await self.conductor.close()
            await self.checker.close()
            await self.database.close()

    async def _start(self) -> None:
        """What begins with the service: the demo, a model to load, or only a warm fork server."""
        try:
            if self.settings.demo:
                _announce(
                    await demo.start(
                        self.registry, self.saes, self.conductor, self.attachments, self.settings
                    ),
                    self.settings,
                )
            elif self.settings.auto_load_model:
                async with self.conductor.use(
                    await self.generation.resolve(self.settings.auto_load_model)
                ):
                    pass
            else:
                await (await self.launcher.launch()).stop()
        except Refusal as refusal:
            logger.error("start_failed", code=refusal.code, reason=refusal.message)
        except Exception:
            logger.exception("start_failed")

    # ------------------------------------------------------------- refusals

    def answer(self, path: str, refusal: Refusal) -> Response:
        """A refusal as the door of the path answers it."""
        row = refusal.row
        if is_counted(path):
            self.metrics.failed(refusal.code)
        if path.startswith("/v1"):
            response = Response(render.error_bytes(refusal), row.v1, media_type="application/json")
            if row.final:
                response.headers["x-should-retry"] = "false"
        else:
            response = envelope.failure(refusal)
        after = retry.seconds(self.settings, refusal, response.status_code)
        if after is not None:
            response.headers["Retry-After"] = str(after)
        return response

    async def _on_refusal(self, request: Request, error: Exception) -> Response:
        assert isinstance(error, Refusal)
        return self.answer(request.url.path, error)

    async def _on_invalid(self, request: Request, error: Exception) -> Response:
        assert isinstance(error, RequestValidationError)
        problems: list[dict[str, Any]] = [
            {"loc": list(p["loc"]), "msg": p["msg"], "type": p["type"]} for p in error.errors()[:20]
        ]
        first = problems[0]
        where = ".".join(str(part) for part in first["loc"])
        refusal = Refusal("VALIDATION_ERROR", f"{where}: {first['msg']}", errors=problems)
        return self.answer(request.url.path, refusal)

    async def _on_http(self, request: Request, error: Exception) -> Response:
        assert isinstance(error, HTTPException)
        is_ours = error.status_code >= 500
        code = "INTERNAL_ERROR" if is_ours else _CODES.get(error.status_code, "VALIDATION_ERROR")
        message = {
            "NOT_FOUND": f"no route {request.url.path!r}",
            "METHOD_NOT_ALLOWED": f"{request.method} is not allowed here",
            "PAYLOAD_TOO_LARGE": f"the body is larger than {self.settings.max_body_bytes} bytes",
        }.get(code, str(error.detail))
        response = self.answer(request.url.path, Refusal(code, message))
        response.headers.update(error.headers or {})
        if is_ours:
            response.status_code = error.status_code
        if error.status_code == 405:
            response.headers["Allow"] = ", ".join(sorted(self._methods(request.scope)))
        return response

    def _methods(self, scope: Scope) -> set[str]:
        """What the path of a request may be asked with; the framework names its first route only."""
        routes = [route for route in self._known if isinstance(route, Route)]
        path = next((r.path for r in routes if r.matches(scope)[0] is not Match.NONE), None)
        told = [r for r in routes if r.path == path and r.include_in_schema]
        return {method for r in told for method in r.methods or ()}

    async def _on_bug(self, request: Request, _: Exception) -> Response:
        refusal = Refusal("INTERNAL_ERROR", "an error inside the service; its log says more")
        return self.answer(request.url.path, refusal)


async def _on_client_gone(_: Request, __: Exception) -> Response:
    """A client that leaves while it sends its body is answered with nothing that it could read."""
    return Response(status_code=499)


def _announce(ready: demo.Ready, settings: Settings) -> None:
    """Tell the person at the terminal what to try."""
    base = f"http://{settings.host}:{settings.port}"
    body = json.dumps({"feature_idx": ready.feature_idx, "value": ready.strength})
    message = {"role": "user", "content": "Tell me a story."}
    ask = json.dumps({"model": ready.model_name, "messages": [message]})
    send = "-H 'content-type: application/json' -d"
    print(
        f"""
steerserve {__version__} is ready at {base}  (Ctrl-C stops it)

  The demo model {ready.model_name!r} is loaded; SAE {ready.sae_id} is attached at layer {ready.layer}.

  Ask for a story:
    curl -s {base}/v1/chat/completions {send} '{ask}'
  Turn the sea feature up, ask again, and read where the story goes:
    curl -s {base}/api/saes/steering {send} '{body}'
  Turn it off:
    curl -s -X DELETE {base}/api/saes/steering
""",
        file=sys.stdout,
        flush=True,
    )
