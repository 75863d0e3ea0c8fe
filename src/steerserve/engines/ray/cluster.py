"""The Ray cluster as the service sees it: asks the placer, and makes the client of each replica.

The placer is started with the first question, and again when it has ended. Replicas do not depend on it. This module
imports neither Ray nor the other packages of the extra `ray` before a cluster is made.
"""

from __future__ import annotations

import asyncio
import contextlib
import importlib
import itertools
import secrets
from collections.abc import Mapping, Sequence
from types import MappingProxyType

import structlog

from steerserve import __version__
from steerserve.engines.checkpoint.client import CheckpointEngine, Launcher
from steerserve.engines.checkpoint.prompts import PromptMaker
from steerserve.engines.ray import messages as m
from steerserve.engines.ray.placer_process import PlacerProcess, unavailable
from steerserve.engines.remote import checkpoints
from steerserve.errors import CannotStart, Refusal
from steerserve.logs import background
from steerserve.messages.engine import Report
from steerserve.settings import Settings
from steerserve.settings.replicas import EXTRA, PortRange, missing_packages

log = structlog.get_logger(__name__)

PLACE_SECONDS = 120.0
"""Seconds in which the cluster must have had room for a replica and its engine must have started."""

ELSEWHERE_SECONDS = 10.0
"""Seconds in which the cluster must have had room for a replica elsewhere, where its node could not fetch the model."""

SURVEY_SECONDS = 60.0
REMOVE_SECONDS = 20.0

CLOSE_SECONDS = 5.0
"""Seconds that the end of the service waits for actors whose engines have just ended."""

NOTHING: Mapping[str, str] = MappingProxyType({})


class RayCluster:
    """Starts engines on the nodes of a cluster. The actors of one cluster object have a namespace of their own.

    Raises:
        CannotStart: the extra `ray` is not installed.
    """

    def __init__(self, settings: Settings) -> None:
        if missing := missing_packages():
            raise CannotStart(f"the extra `ray` is not installed ({', '.join(missing)}): {EXTRA}")
        # imported here, because a service without the extra has no library for certificates
        self._link = importlib.import_module("steerserve.engines.remote.link")
        self._node_engine = importlib.import_module("steerserve.engines.remote.node_engine")
        self._certificates = importlib.import_module("steerserve.engines.remote.certificates")
        self._settings = settings
        self._caches = checkpoints.caches(settings)
        self._launcher = Launcher(settings.log_level, settings.log_format, settings.load_timeout)
        self._placer = PlacerProcess(
            settings.ray_address, f"steerserve-{secrets.token_hex(8)}", self._lose
        )
        self._engines: dict[str, CheckpointEngine] = {}
        self._numbers = itertools.count(1)
        self._removing: set[asyncio.Task[None]] = set()

    @property
    def placer_pid(self) -> int | None:
        """The id of the process of the placer; None while none runs."""
        return self._placer.pid

    async def launch(
        self,
        prompts: PromptMaker | None = None,
        barred: Mapping[str, str] = NOTHING,
        files: Mapping[str, str | None] = NOTHING,
        report: Report = lambda _: None,
    ) -> CheckpointEngine:
        """An engine without a model, on a node that Ray chooses. `prompts` makes its prompts into tokens; by default it
        has a maker of its own. `barred` has the ids of nodes that must not get the engine, each with the name and the
        reason; `files` has the digests that folders must have on its node. Ray is told to leave out these nodes, and
        every node that turns out to have other files or another version. A node fetches folders that are downloads of
        the hub, and `report` gets the progress; a node that cannot fetch them is left out too.

        Raises:
            Refusal: ENGINE_UNAVAILABLE when the cluster cannot be reached or has no room, or when the engine cannot be
                reached; why a node cannot fetch the files, where no other node has room.
        """
        left_out = dict(barred)
        downloads = [folder for folder in files if checkpoints.is_download(folder, self._caches)]
        compared = {folder: digest for folder, digest in files.items() if folder not in downloads}
        unfetched: Refusal | None = None
        while True:
            name = f"replica-{next(self._numbers)}"
            identity = self._certificates.new_identity()
            try:
                seconds = PLACE_SECONDS if unfetched is None else ELSEWHERE_SECONDS
                placement = await self._place(
                    name, identity.certificate, left_out, compared, seconds
                )
                if placement.home in left_out:
                    ignored = "it does not leave out nodes that must not serve"
                    raise unavailable(ignored + _named(left_out))
                why = _why_displaced(placement)
                if isinstance(placement, m.Placed) and why is None:
                    engine = await self._reached(name, placement, identity, prompts)
                    unfetched = await _without_files(engine, downloads, report)
                    if unfetched is None:
                        return engine
                    why = f"{engine.node}: {unfetched.message}"
            except BaseException as error:
                self._remove(name)
                if unfetched is not None and isinstance(error, Refusal):
                    raise unfetched from error
                raise
            self._remove(name)
            left_out[placement.home] = str(why)
            log.warning("node_left_out", node=why)

    async def _place(
        self,
        name: str,
        certificate: str,
        left_out: Mapping[str, str],
        files: Mapping[str, str | None],
        seconds: float,
    ) -> m.Placement:
        """Have the replica placed.

        Raises:
            Refusal: ENGINE_UNAVAILABLE; the message names the nodes that were left out.
        """
        settings = self._settings
        try:
            return await self._placer.ask(
                lambda number: m.PlaceReplica(
                    number,
                    name,
                    certificate,
                    settings.log_level,
                    settings.log_format,
                    settings.engine_cards,
                    settings.engine_resources,
                    settings.engine_placement,
                    PortRange.from_text(settings.engine_ports),
                    list(left_out),
                    dict(files),
                    self._caches,
                    seconds,
                ),
                m.Placement,
                2 * PLACE_SECONDS,
            )
        except Refusal as refusal:
            raise Refusal(refusal.code, refusal.message + _named(left_out)) from None

    async def _reached(
        self, name: str, placed: m.Placed, identity: object, prompts: PromptMaker | None
    ) -> CheckpointEngine:
        """The client of an engine that was placed."""
        process, reader, writer = await self._link.connect(placed.contact, identity)
        engine: CheckpointEngine = self._node_engine.NodeEngine(
            process, reader, writer, prompts or self._launcher.prompts(), self._settings
        )
        self._engines[name] = engine
        # also an actor that stands still is ended
        engine.ended.add_done_callback(lambda _: self._remove(name))
        log.info("replica_placed", replica=name, node=engine.node, cards=placed.cards)
        return engine

    async def nodes(self, *folders: str, hub: str | None = None) -> list[m.NodeSeen]:
        """The nodes that are alive, with their facts, and the digest of the files in each of these folders there. With
        the address of a hub, also whether each node can reach the hub.

        Raises:
            Refusal: ENGINE_UNAVAILABLE when the cluster cannot be reached.
        """
        answer = await self._placer.ask(
            lambda number: m.Survey(number, list(folders), self._caches, hub),
            m.Surveyed,
            SURVEY_SECONDS,
            may_repeat=True,
        )
        return answer.nodes

    async def close(self) -> None:
        """End the placer, after the actors of engines that have ended. Engines that still run end with their links."""
        if removing := set(self._removing):
            _, late = await asyncio.wait(removing, timeout=CLOSE_SECONDS)
            for task in late:
                task.cancel()
            await asyncio.gather(*late, return_exceptions=True)
        await self._placer.close()

    def _lose(self, gone: m.Gone) -> None:
        """End an engine that Ray counts as gone: an actor whose node has lost Ray may run on, unwatched."""
        log.warning("replica_gone", replica=gone.name, reason=gone.reason)
        if (engine := self._engines.get(gone.name)) is not None:
            engine.lose(f"Ray has lost its replica: {gone.reason}")

    def _remove(self, name: str) -> None:
        self._engines.pop(name, None)
        task = background.start(self._removed(name), name=f"remove-{name}")
        self._removing.add(task)
        task.add_done_callback(self._removing.discard)

    async def _removed(self, name: str) -> None:
        # where Ray cannot be asked, the actor ends by itself when its engine has lost its link
        with contextlib.suppress(Refusal):
            await self._placer.ask(lambda number: m.Remove(number, name), m.Removed, REMOVE_SECONDS)


async def _without_files(
    engine: CheckpointEngine, folders: Sequence[str], report: Report
) -> Refusal | None:
    """Have the node of an engine bring the files of these folders. Returns why it cannot; the engine is then ended."""
    try:
        for folder in folders:
            await engine.bring(folder, report)
    except BaseException as error:
        engine.lose("its node has not got the files of the model")
        if isinstance(error, Refusal) and error.code != "ENGINE_UNAVAILABLE":
            return error
        raise
    return None


def _named(left_out: Mapping[str, str]) -> str:
    """The nodes that were left out, and what to do about them, as the end of a sentence."""
    if not left_out:
        return ""
    return (
        f"; nodes that were left out: {'; '.join(sorted(left_out.values()))}. Give them the files and the version of "
        "steerserve that this machine has, and load the model again"
    )


def _why_displaced(placement: m.Placement) -> str | None:
    """Why a replica cannot stay on its node, with the name of the node; None if it can."""
    if isinstance(placement, m.Placed):
        facts = placement.contact.facts
        if facts.steerserve == __version__:
            return None
        theirs = f"{facts.name}: it has steerserve {facts.steerserve}"
        return f"{theirs}, and this service is {__version__}"
    assert isinstance(placement, m.Displaced)
    return f"{placement.name}: {placement.reason}"
