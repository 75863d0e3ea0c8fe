"""A cluster of two nodes that are both this machine, with real engines."""

from __future__ import annotations

from dataclasses import replace

from steerserve.engines.checkpoint.client import CheckpointEngine, Launcher
from steerserve.engines.checkpoint.prompts import PromptMaker
from steerserve.engines.remote.facts import checkpoint_seen, read_facts
from steerserve.errors import Refusal
from tests.nodes import NodeSeen

ADDRESS = "127.0.0.1"
NAMES = ("east", "west")


class LocalCluster:
    """Starts each engine on the node with the fewest engines."""

    def __init__(self) -> None:
        self._launcher = Launcher("WARNING", "console")
        self.engines: list[CheckpointEngine] = []
        self.is_closed = False
        self.free_host_mb: int | None = None
        """The free memory that each node tells; None for that of this machine."""
        self.refusal: str | None = None
        """Why no engine can be started; None where it can."""

    async def launch(self, prompts: PromptMaker, *_: object) -> CheckpointEngine:
        if self.refusal is not None:
            raise Refusal("MODEL_LOAD_FAILED", self.refusal)
        engine = await self._launcher.launch(prompts)
        engine.node = min(NAMES, key=[alive.node for alive in self.alive].count)
        engine.address = ADDRESS
        self.engines.append(engine)
        return engine

    async def nodes(self, *folders: str) -> list[NodeSeen]:
        facts = read_facts(ADDRESS)
        if self.free_host_mb is not None:
            facts = replace(facts, free_host_mb=self.free_host_mb)
        seen = {folder: checkpoint_seen(folder) for folder in folders}
        return [
            NodeSeen(name, ADDRESS, {"CPU": 4.0}, replace(facts, name=name), seen) for name in NAMES
        ]

    async def close(self) -> None:
        self.is_closed = True

    @property
    def alive(self) -> list[CheckpointEngine]:
        return [engine for engine in self.engines if not engine.ended.done()]
