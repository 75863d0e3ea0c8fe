"""The cluster on whose nodes replicas run, as this room needs it. `app/wiring.py` chooses who fulfils it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

from steerserve.engines.checkpoint.prompts import PromptMaker
from steerserve.engines.remote.facts import NodeFacts
from steerserve.messages.engine import Engine, Report


class SeenNode(Protocol):
    """A node that is alive."""

    @property
    def id(self) -> str:
        """The id that the cluster gives it. No two nodes have the same."""

    @property
    def name(self) -> str:
        """The name that the cluster gives it. Engines name their node as its facts do."""

    @property
    def address(self) -> str: ...

    @property
    def resources(self) -> Mapping[str, float]:
        """What the node has in all, by the names of the cluster: `CPU`, `GPU`, and others."""

    @property
    def facts(self) -> NodeFacts | None:
        """None when the node did not answer, with the reason in `error`."""

    @property
    def folders(self) -> Mapping[str, str | None]:
        """The digest of the files in each folder that was asked for; None where the node does not see the folder."""

    @property
    def error(self) -> str | None: ...


class EngineCluster(Protocol):
    """The nodes on which replicas run."""

    async def launch(
        self,
        prompts: PromptMaker,
        barred: Mapping[str, str],
        files: Mapping[str, str | None],
        report: Report,
    ) -> Engine:
        """An engine on a node. `prompts` makes its prompts into tokens. `barred` has the ids of nodes that must not get
        the engine, each with the name and the reason, and `files` the digests that folders must have on its node. The
        node fetches folders that are downloads of the hub; `report` gets the progress.

        Raises:
            Refusal: ENGINE_UNAVAILABLE; why no node could fetch the files.
        """

    async def nodes(self, *folders: str) -> Sequence[SeenNode]:
        """The nodes that are alive, and what they see of these folders.

        Raises:
            Refusal: ENGINE_UNAVAILABLE.
        """

    async def close(self) -> None: ...
