"""The service as one ASGI application: its owners, its routes, the layers around the routes, its start and its stop."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, suppress

import structlog
from fastapi import APIRouter, FastAPI
from fastapi.routing import APIRoute
from socketio import ASGIApp
from starlette.middleware.cors import CORSMiddleware
from starlette.types import ASGIApp as Application
from starlette.types import Receive, Scope, Send

from steerserve import __version__
from steerserve.api import reference, webui
from steerserve.app import routes, startup
from steerserve.app.error_handlers import Refusals
from steerserve.app.known_inputs import limit_inputs
from steerserve.app.meter import Meter
from steerserve.app.openapi import DescribedApi
from steerserve.app.wiring import Owners, Surroundings, surroundings
from steerserve.events.packets import CheckedPackets
from steerserve.events.socketio import LiveEvents
from steerserve.http.forwarded import Forwarded
from steerserve.http.guards import Guards
from steerserve.http.head_requests import HeadRequests
from steerserve.logs import setup as log
from steerserve.nouns import registry
from steerserve.settings import Settings
from steerserve.settings.secrets import keys_in

_SECRETS = frozenset({"HUB_TOKEN", "API_KEYS"})
logger = structlog.get_logger(__name__)


class Service:
    """The whole service as one ASGI application.

    Args:
        settings: the settings of the service, by default those of the environment.
        around: the parts outside of the control plane, by default those that the settings name.
    """

    def __init__(
        self, settings: Settings | None = None, around: Surroundings | None = None
    ) -> None:
        self.settings = settings or Settings()
        # the settings have read the secrets, which no child process may inherit
        for name in [name for name in os.environ if name.upper() in _SECRETS]:
            del os.environ[name]
        around = around or surroundings(self.settings)
        log.configure(self.settings.log_level, self.settings.log_format, around.log_lines)
        self.owners = Owners(self.settings, around)
        self.live = LiveEvents(self.owners.bus, self.settings, self.owners.around.cards)
        self.api = DescribedApi(
            title="steerserve",
            version=__version__,
            lifespan=self._lifespan,
            redirect_slashes=False,
            openapi_url=None,
            docs_url=None,
            redoc_url=None,
        )
        for router in self._routers():
            self.api.add(router)
        for route in self.api.routes:
            if isinstance(route, APIRoute):
                limit_inputs(route, self.settings.ignored_fields_header_max_bytes)
        self._refusals = Refusals(self.settings, self.owners.metrics, self.api.routes)
        self._refusals.handle(self.api)
        self._app = self._guarded()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await self._app(scope, receive, send)

    async def open(self) -> None:
        """Open the database and read the registered models and SAEs. The start of the application does this too; a
        second opening does nothing.

        Raises:
            CannotStart: the database cannot be used.
        """
        database = self.owners.around.database
        await database.open()
        if tables := registry.foreign_tables():
            await database.make_missing(tables)
        await self.owners.catalog.fill()

    async def read_keys_again(self) -> None:
        """Take the keys that API_KEYS_FILE has now. If it has none, those of before stay. Once a key is gone, all
        connections of live events end; clients with a key connect again by themselves."""
        file = self.settings.api_keys_file
        if file is None:
            return
        try:
            keys = await asyncio.to_thread(keys_in, file)
        except ValueError as error:
            logger.error("keys_not_read", reason=str(error))
            return
        if self._guards.replace_keys(keys):
            self.live.end_sessions()
        logger.info("keys_read", count=len(keys))

    async def drain(self) -> None:
        """Refuse new requests and wait at most GRACEFUL_SHUTDOWN_TIMEOUT for the requests that run. Requests that still
        run then end with an error event."""
        generation, conductor = self.owners.generation, self.owners.conductor
        generation.is_closing = conductor.is_closing = True
        await self.owners.batches.close()
        logger.info("draining", in_flight=generation.active)
        deadline = asyncio.get_running_loop().time() + self.settings.graceful_shutdown_timeout
        while generation.active and asyncio.get_running_loop().time() < deadline:
            await asyncio.sleep(0.02)
        await conductor.close()

    # ------------------------------------------------------------- inside

    def _routers(self) -> Iterator[APIRouter]:
        yield from routes.inference(self.owners)
        yield from routes.management(self.owners)
        yield reference.router(self.api.openapi)
        yield webui.router(self.api.openapi)

    def _guarded(self) -> Application:
        server = self.live.server
        inner: Application = CheckedPackets(
            ASGIApp(server, other_asgi_app=HeadRequests(self.api)),
            server,
            self._refusals.answer,
            self.settings.max_live_clients,
        )
        metrics = self.owners.metrics
        answer, defaulted = self._refusals.answer, metrics.defaulted.note_path
        self._guards = Guards(inner, self.settings, answer, defaulted)
        guarded: Application = self._guards
        # around the guards, so that a page that may call the service can read why a guard refused it
        if self.settings.cors_origins:
            guarded = CORSMiddleware(
                guarded,
                allow_origins=self.settings.cors_origins,
                allow_methods=["*"],
                allow_headers=["*"],
                expose_headers=["*"],
            )
        has_keys = bool(self.settings.api_keys)
        metered = Meter(guarded, metrics, self.owners.loop_watch, has_keys=has_keys)
        proxies = self.settings.trusted_proxies
        return Forwarded(metered, proxies) if proxies else metered

    @asynccontextmanager
    async def _lifespan(self, _: FastAPI) -> AsyncIterator[None]:
        owners = self.owners
        await self.open()
        if not webui.is_built():
            logger.warning("web_page_missing", build=webui.BUILD)
        # some answers show this first reading of the cards, because they must not wait for the driver
        owners.around.cards.begin_reading()
        owners.loop_watch.start_watch()
        starting = asyncio.create_task(startup.begin_service(owners))
        try:
            yield
        finally:
            await self.live.close()
            starting.cancel()
            with suppress(asyncio.CancelledError):
                await starting
            await owners.close()
            owners.loop_watch.close()
