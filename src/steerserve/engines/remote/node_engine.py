"""The client of an engine on another node. It has the host bring the files of a checkpoint to the node before the
engine reads them, and names them to the engine by their paths there."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable, Mapping

import msgspec

from steerserve import messages as m
from steerserve.engines.checkpoint.client import CheckpointEngine
from steerserve.engines.checkpoint.process import FrameReader, FrameWriter
from steerserve.engines.checkpoint.prompts import PromptMaker
from steerserve.engines.remote import checkpoints, words
from steerserve.engines.remote.channel import PartKind
from steerserve.engines.remote.checkpoints import WantedFiles
from steerserve.engines.remote.link import RemoteProcess
from steerserve.engines.remote.words import Bring, Brought, Joiner
from steerserve.errors import Refusal
from steerserve.messages.engine import Answer, Report
from steerserve.rules.models import fetching
from steerserve.rules.models.fetching import FetchTask, Presence
from steerserve.settings import Settings


class NodeEngine(CheckpointEngine):
    """An engine on another node. Paths in its commands are those of the machine of the service."""

    def __init__(
        self,
        process: RemoteProcess,
        reader: FrameReader,
        writer: FrameWriter,
        prompts: PromptMaker,
        settings: Settings,
    ) -> None:
        super().__init__(process, reader, writer, prompts)
        facts = process.contact.facts
        self.node = facts.name
        self.address = process.contact.host
        self._settings = settings
        self._folders = checkpoints.folders_there(checkpoints.caches(settings), facts.caches)
        self._remote = process
        self._questions = itertools.count(1)
        self._joiner = Joiner()
        self._waiting: dict[int, asyncio.Queue[Brought | None]] = {}
        process.on_answer = self._take_answer

    # ------------------------------------------------------------- commands

    async def ask(self, question: m.Question[Answer]) -> Answer:
        if isinstance(question, m.Inspect | m.Explore) and question.source is not None:
            await self.bring(question.source.path)
        return await super().ask(question)

    async def _apply(self, state: m.State) -> Mapping[str, m.Attached]:
        for sae in state.since(self.state).coming:
            await self.bring(sae.source.path)
        return await super()._apply(state)

    async def _ask(self, make: Callable[[int], m.Command], report: Report | None = None) -> m.Event:
        return await super()._ask(lambda number: self._there(make(number)), report)

    def _there(self, command: m.Command) -> m.Command:
        """The command with the paths of the node."""
        change: Mapping[str, object] = {}
        match command:
            case m.Load():
                change = {"path": fetching.moved(command.path, self._folders)}
            case m.Inspect() | m.Explore() if command.source is not None:
                change = {"source": self._moved(command.source)}
            case m.Apply():
                saes = command.state.saes
                there = [msgspec.structs.replace(s, source=self._moved(s.source)) for s in saes]
                change = {"state": msgspec.structs.replace(command.state, saes=tuple(there))}
        return msgspec.structs.replace(command, **change) if change else command

    def _moved(self, source: m.SaeSource) -> m.SaeSource:
        path = fetching.moved(source.path, self._folders)
        return msgspec.structs.replace(source, path=path)

    # ------------------------------------------------------------- files

    async def bring(self, path: str, report: Report = lambda _: None) -> None:
        wanted = await asyncio.to_thread(checkpoints.wanted, path, list(self._folders))
        missing = await self._asked_host(wanted, None, report)
        match fetching.presence(missing, wanted.revision):
            case Presence.LACKING:
                raise Refusal(
                    "INVALID_LOCAL_PATH",
                    f"node {self.node} does not have the files of {path}, or has other files there: "
                    f"{_named(missing)}; the files are no download of the hub, so put them on the node",
                    node=self.node,
                    path=path,
                )
            case Presence.FETCH:
                task = checkpoints.fetch_task(wanted, self._folders, self._settings)
                if missing := await self._asked_host(wanted, task, report):
                    why = f"node {self.node} still lacks files after it has fetched them: {_named(missing)}"
                    raise Refusal("DOWNLOAD_FAILED", why, node=self.node, path=path)

    async def _asked_host(
        self, wanted: WantedFiles, task: FetchTask | None, report: Report
    ) -> tuple[str, ...]:
        """Ask the host for files, and return those that the node lacks.

        Raises:
            Refusal: why the node cannot fetch them; what refuses commands once the engine has ended.
        """
        number = next(self._questions)
        answers = self._waiting[number] = asyncio.Queue()
        folder = fetching.moved(wanted.folder, self._folders)
        try:
            if self._remote.channel.is_closing():
                raise await self._gone()
            for part in words.parts(words.encode(Bring(number, folder, wanted.files, task))):
                self._remote.channel.say(PartKind.ASK, part)
            while (brought := await answers.get()) is not None:
                if (sign := brought.sign) is None:
                    return brought.lacking
                if sign.code is not None:
                    raise self._refusal(sign, wanted)
                report(m.Progress(number, m.FETCHING_FILES, sign.percent))
            raise await self._gone()
        finally:
            del self._waiting[number]

    def _refusal(self, sign: fetching.FetchSign, wanted: WantedFiles) -> Refusal:
        assert sign.code is not None
        revision = wanted.revision
        assert revision is not None
        why = f"node {self.node} cannot fetch {revision.repo_id} at commit {revision.sha[:12]}: {sign.message}"
        details = {**sign.details, "node": self.node, "path": wanted.folder}
        return Refusal(sign.code, why, **details)

    def _take_answer(self, payload: bytes | None) -> None:
        """Take a part of an answer of the host; None once the connection has ended."""
        if payload is None:
            for answers in self._waiting.values():
                answers.put_nowait(None)
            return
        if (body := self._joiner.add(payload)) is not None:
            brought = words.decode_brought(body)
            if (waiting := self._waiting.get(brought.id)) is not None:
                waiting.put_nowait(brought)


def _named(paths: tuple[str, ...]) -> str:
    """The first of the files, for people."""
    more = f" and {len(paths) - 3} more" if len(paths) > 3 else ""
    return ", ".join(paths[:3]) + more
